"""The tables `ops` and `executions` of the decoded events of a trace.

In: columns of ops as NumPy arrays (`Ops`), from a device's streams or from CPU thunks. Out: Polars frames. An execution
is the ops with the same run id of a program on a device; executions are numbered by start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from nightjar_profiling.bytes.wire import Positions
from nightjar_profiling.capture_folder.tables import fill_table
from nightjar_profiling.hlo.hlo import Program
from nightjar_profiling.readers.xplane.xplane_values import Integers, Texts, unknown

KINDS = ["kernel", "thunk", "memcpy", "memset", "graph"]
KERNEL, THUNK, MEMCPY, MEMSET, GRAPH = range(5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ops:
    """Ops of one rank, column by column; ops of one program launch have the same `run`."""

    device: Positions
    program: Integers
    run: Integers
    instruction: Texts
    stream: Texts
    kernel: Texts
    kind: Texts
    start_ns: Positions
    duration_ns: Positions
    uncertain: Integers  # ns by which the end may be off; known for thunks
    correlation: Integers
    graph: Integers
    graph_node: Integers
    bytes: Integers
    launch_ns: Integers

    def take(self, rows: Positions | NDArray[np.bool_]) -> Ops:
        """Selects rows."""
        parts: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        selected: dict[str, Any] = {
            k: part[rows] if isinstance(part, np.ndarray) else part.take(rows) for k, part in parts.items()
        }
        return Ops(**selected)

    def sort(self) -> Ops:
        """Sorts by device and start."""
        device, start = self.device, self.start_ns
        if ((device[1:] > device[:-1]) | ((device[1:] == device[:-1]) & (start[1:] >= start[:-1]))).all():
            return self
        by_start = np.argsort(self.start_ns, kind="stable")
        return self.take(by_start[np.argsort(self.device[by_start], kind="stable")])


def make_ops(count: int, **columns: Any) -> Ops:
    """Ops of these columns; of the others no value is known."""
    return Ops(**{field.name: columns.get(field.name, unknown(count)) for field in fields(Ops)})


def tabulate(ops: Ops, rank: int) -> dict[str, pl.DataFrame]:
    """Makes the tables `ops` and `executions`."""
    ops = ops.sort()
    execution, executions = number_executions(ops, rank)
    count = len(ops.start_ns)
    return {
        "executions": executions,
        "ops": fill_table(
            "ops",
            count,
            rank=rank,
            device=ops.device,
            program_id=ops.program.column(),
            execution=execution.column(),
            instruction=ops.instruction.column(),
            stream=ops.stream.column(),
            kernel=ops.kernel.column(),
            start_ns=ops.start_ns,
            duration_ns=ops.duration_ns,
            uncertain_ns=ops.uncertain.column(),
            kind=ops.kind.column(),
            thunk=number_thunks(ops).column(),
            correlation_id=ops.correlation.column(),
            graph_node=ops.graph_node.column(),
            launch_ns=ops.launch_ns.column(),
            bytes=ops.bytes.column(),
        ),
    }


def number_executions(ops: Ops, rank: int) -> tuple[Integers, pl.DataFrame]:
    """The execution number of each op (sorted), and the table `executions`."""
    count = len(ops.start_ns)
    keys = {"device": ops.device, "program_id": ops.program.values, "run": ops.run.values}
    has_run = ops.program.known & ops.run.known
    change = np.ones(count, np.bool_)
    change[1:] = has_run[1:] != has_run[:-1]
    for key in keys.values():
        change[1:] |= key[1:] != key[:-1]
    heads = np.flatnonzero(change)
    if count:
        ends = np.maximum.reduceat(ops.start_ns + ops.duration_ns, heads)
    else:
        ends = np.zeros(0, np.int64)
    pieces = pl.DataFrame({name: key[heads] for name, key in keys.items()}).with_columns(
        start=ops.start_ns[heads], end=ends, known=has_run[heads]
    )
    runs = (
        pieces.filter("known")
        .group_by(*keys, maintain_order=True)
        .agg(start_ns=pl.col("start").min(), end=pl.col("end").max())
        .with_columns(execution=pl.int_range(pl.len()).over("device", "program_id"), known=True)
    )
    numbers = pieces.join(runs, on=[*keys, "known"], how="left", maintain_order="left")["execution"]
    values = np.repeat(numbers.fill_null(0).to_numpy(), np.diff(np.append(heads, count)))
    table = fill_table(
        "executions",
        runs.height,
        rank=rank,
        device=runs["device"],
        program_id=runs["program_id"],
        execution=runs["execution"],
        start_ns=runs["start_ns"],
        duration_ns=runs["end"] - runs["start_ns"],
    )
    return Integers(values=values.astype(np.int64, copy=False), known=has_run), table


def number_thunks(ops: Ops) -> Integers:
    """The thunk run that launched each op (sorted); numbers are unique across devices.

    On a CPU, each op is a thunk run. On a GPU, the nodes of one graph launch with the same instruction are one thunk
    run; so are kernels with the same instruction, stream and program run that were launched one after another: next to
    each other on a stream are also the turns of a loop of which nothing else runs there. If the program run is unknown,
    so is the thunk run.
    """
    count = len(ops.start_ns)
    if not count or (ops.kind.codes == THUNK).all():
        return Integers(values=np.arange(count), known=np.ones(count, np.bool_))
    codes, stream = ops.instruction.codes, ops.stream.codes
    named = ops.program.known & (codes >= 0)
    node = named & ops.graph_node.known & ops.correlation.known
    single = named & ~node & ops.run.known
    values = np.arange(count)
    if single.all() and (stream == stream[0]).all():
        values = _number_stretches(codes, ops.run.values)
    elif len(order := np.flatnonzero(single)):
        launched = ops.correlation.values if ops.correlation.known[order].all() else stream
        order = order[np.lexsort((launched[order], ops.run.values[order]))]
        values[order] = order[_number_stretches(codes[order], stream[order], ops.run.values[order])]
    rows = np.flatnonzero(node)
    if len(rows):
        _, first, group = np.unique(
            ops.correlation.values[rows] * (len(ops.instruction.names) + 1) + codes[rows],
            return_index=True,
            return_inverse=True,
        )
        values[rows] = rows[first][group]
    values += ops.device << 40
    return Integers(values=values, known=node | single | (ops.kind.codes == THUNK))


def _number_stretches(*columns: Positions) -> Positions:
    """The first row of the stretch of equal values that each row belongs to."""
    change = np.ones(len(columns[0]), np.bool_)
    np.logical_or.reduce([column[1:] != column[:-1] for column in columns], out=change[1:])
    heads = np.flatnonzero(change)
    return np.repeat(heads, np.diff(np.append(heads, len(change))))


def sum_by_instruction(ops: Ops, counted: NDArray[np.bool_]) -> pl.DataFrame:
    """Sums device time of program ops by `program_id` and `instruction` (null: none), without text comparisons."""
    counted = counted & ops.program.known
    rows = slice(None) if counted.all() else counted
    ids, index = number_values(ops.program.values[rows])
    names = [*ops.instruction.names, None]
    keys = ops.instruction.codes[rows] % len(names)
    if len(ids) > 1:
        keys += index * len(names)
    sums = np.bincount(keys, ops.duration_ns[rows])  # sums floats: exact up to 2**53 ns
    present = np.flatnonzero(np.bincount(keys))
    return pl.DataFrame(
        {
            "program_id": ids[present // len(names)],
            "instruction": pl.Series([names[code] for code in (present % len(names)).tolist()], dtype=pl.String),
            "duration_ns": sums[present].astype(np.int64),
        }
    )


def number_values(values: Positions) -> tuple[Positions, Positions]:
    """The distinct values, ascending, and the index of each row's value; `np.unique`, but fast for repeated values."""
    if len(values):
        heads = np.flatnonzero(np.append(True, values[1:] != values[:-1]))
    else:
        heads = values
    ids, index = np.unique(values[heads], return_inverse=True)
    return ids, np.repeat(index, np.diff(np.append(heads, len(values))))


def find_containers(ops: Ops, programs: Mapping[int, Program]) -> NDArray[np.bool_]:
    """Which ops contain other ops, so that time would count twice.

    With HLO, an op is a container if an instruction of a computation that it calls ran as an op of its own. Without
    HLO, an op is a container if it encloses another op of the same program on the same stream.
    """
    is_container = np.zeros(len(ops.start_ns), np.bool_)
    ids, index = number_values(ops.program.values)
    for number, program_id in enumerate(ids.tolist()):
        if len(ids) > 1:
            rows = np.flatnonzero((index == number) & ops.program.known)
        else:
            rows = np.flatnonzero(ops.program.known)
        codes = ops.instruction.codes[rows]
        if program_id not in programs:
            is_container[rows[encloses(ops, rows)]] = True
            continue
        program, ran = programs[program_id], np.zeros(len(ops.instruction.names) + 1, np.bool_)
        ran[codes] = True
        names = {ops.instruction.names[code]: code for code in np.flatnonzero(ran[:-1]).tolist()}
        containing = np.zeros_like(ran)
        for name, code in names.items():
            called = name in program.instructions and program.instructions[name].called
            containing[code] = bool(called) and not names.keys().isdisjoint(program.below(name))
        is_container[rows[containing[codes]]] = True
    return is_container


def encloses(ops: Ops, rows: Positions) -> NDArray[np.bool_]:
    """Which rows enclose the next row of their stream."""
    start, duration, stream = ops.start_ns[rows], ops.duration_ns[rows], ops.stream.codes[rows]
    order = np.lexsort((-duration, start, stream))
    before, after = order[:-1], order[1:]
    contains_next = np.zeros(len(rows), np.bool_)
    ends = start + duration
    contains_next[before] = (
        (stream[before] == stream[after]) & (start[after] < ends[before]) & (ends[after] <= ends[before])
    )
    return contains_next
