"""The tables of a capture: one Polars frame per table of docs/reference/capture-folder.md.

In: rows of a reader, or the Parquet files of a capture folder. Out: frames with the columns and types of SCHEMAS.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import polars as pl

from nightjar_profiling.errors import InputError, ProfilingError

Row = Mapping[str, Any]

SCHEMAS: dict[str, dict[str, type[pl.DataType]]] = {
    # lowered: whether the capture has it as it was before optimizations
    "programs": {"program_id": pl.Int64, "name": pl.String, "fingerprint": pl.String, "lowered": pl.Boolean},
    "instructions": {
        "program_id": pl.Int64,
        "name": pl.String,
        "opcode": pl.String,  # a fusion is `fusion:<kind>`
        "computation": pl.String,
        "op_name": pl.String,
        "frame_id": pl.Int64,  # null: no stack of its own
        "shape": pl.String,  # of the output, on one device: `f32[8,128]`
        "sharding": pl.String,  # `[8,1]`, replicated, not split, ...; null: one partition, or not known
        "global_shape": pl.String,  # of the whole array if `sharding` is known
        "bytes": pl.Int64,  # of the output
        "flops": pl.Float64,  # of one run; null: cannot be known (a loop's trips, a custom call)
        "bytes_accessed": pl.Int64,  # of one run, read and written; null: as flops
        "main_work": pl.String,  # of a fusion: the opcode that dominates it; null: none does, or no fusion
    },
    "frames": {
        "program_id": pl.Int64,
        "frame_id": pl.Int64,
        "parent_id": pl.Int64,  # null: outermost
        "file": pl.String,
        "line": pl.Int64,
        "function": pl.String,
    },
    "executions": {
        "rank": pl.Int64,
        "device": pl.Int64,
        "program_id": pl.Int64,
        "execution": pl.Int64,
        "start_ns": pl.Int64,
        "duration_ns": pl.Int64,
        "complete": pl.Boolean,  # false: the trace was cut off inside; null: not known
    },
    "ops": {
        "rank": pl.Int64,
        "device": pl.Int64,
        "program_id": pl.Int64,  # null: an op of no program, such as a copy to the device
        "execution": pl.Int64,  # null: not in the trace
        "instruction": pl.String,  # null: as program_id
        "stream": pl.String,
        "kernel": pl.String,
        "start_ns": pl.Int64,
        "duration_ns": pl.Int64,
        "uncertain_ns": pl.Int64,  # of a thunk: by how much its end may be off; 0: recorded; null: no thunk
        "hidden_ns": pl.Int64,  # of communication: the part during which the device also computed; null: not computed
        "kind": pl.String,  # kernel, thunk, memcpy, memset, graph
        "thunk": pl.Int64,  # kernels that one thunk run launched share it, within a rank; null: not known
        "correlation_id": pl.Int64,
        "graph_node": pl.Int64,
        "launch_ns": pl.Int64,  # when the host called for it
        "bytes": pl.Int64,  # of a memcpy or memset
    },
    "kernels": {  # launches of a kernel with one configuration
        "rank": pl.Int64,
        "device": pl.Int64,
        "kernel": pl.String,  # with its template arguments, if the trace has them
        "launches": pl.Int64,
        "duration_ns": pl.Int64,
        "grid": pl.String,  # blocks in x, y and z: `128,1,1`
        "block": pl.String,  # threads in x, y and z
        "registers": pl.Int64,  # of a thread
        "shared_bytes": pl.Int64,  # of a block, static and dynamic
        "occupancy": pl.Float64,  # highest share of a multiprocessor's warps that its resources allow; null: not known
        "tensor_cores": pl.Boolean,  # true: the name says so; null: unknown
    },
    "collectives": {
        "rank": pl.Int64,
        "device": pl.Int64,
        "program_id": pl.Int64,
        "execution": pl.Int64,
        "instruction": pl.String,
        "kind": pl.String,  # all-reduce, all-gather, reduce-scatter, all-to-all, collective-permute, ...
        "start_ns": pl.Int64,
        "duration_ns": pl.Int64,
        "message_bytes": pl.Int64,  # by the conventions of nccl-tests
        "group_size": pl.Int64,
        "group": pl.Int64,  # of several side by side, the one that this device is in; null: there is one, or not known
        "channel_id": pl.Int64,
        "algbw_gb_per_s": pl.Float64,
        "busbw_gb_per_s": pl.Float64,
        "wait_ns": pl.Int64,  # spent waiting for the last rank; null: ranks are not merged
    },
    "groups": {  # devices of collectives that run in several groups side by side
        "program_id": pl.Int64,
        "instruction": pl.String,
        "group": pl.Int64,
        "device_id": pl.Int64,  # JAX's, which counts over all processes
    },
    "compile": {
        "rank": pl.Int64,
        "thread": pl.Int64,
        "range_id": pl.Int64,
        "parent_id": pl.Int64,  # null: outermost; may lie on another thread (a parallel worker)
        "name": pl.String,
        "program": pl.String,  # module name; null: not known
        "program_id": pl.Int64,
        "start_ns": pl.Int64,
        "duration_ns": pl.Int64,
        "self_ns": pl.Int64,  # duration less its children's
        "called_at": pl.String,  # FILE:LINE of the program's code that made JAX compile; null: not known
    },
    "ranges": {  # annotations of the host: NVTX, TraceMe
        "rank": pl.Int64,
        "thread": pl.Int64,
        "domain": pl.String,
        "range_id": pl.Int64,
        "parent_id": pl.Int64,
        "name": pl.String,
        "start_ns": pl.Int64,
        "duration_ns": pl.Int64,
        "device_start_ns": pl.Int64,  # projected onto the device: first start of its ops; null: it launched none
        "device_duration_ns": pl.Int64,
        "n_ops": pl.Int64,
    },
    "steps": {"rank": pl.Int64, "step": pl.Int64, "start_ns": pl.Int64, "duration_ns": pl.Int64},
    "buffers": {  # allocations of a program that are live at its peak of memory, from XLA's buffer assignment
        "program_id": pl.Int64,
        "instruction": pl.String,
        "kind": pl.String,  # parameter, constant, output, temp
        "size_bytes": pl.Int64,
    },
    "memory_over_time": {  # temporary values of a program in the order of its schedule
        "program_id": pl.Int64,
        "position": pl.Int64,
        "instruction": pl.String,  # that was allocated or freed
        "live_bytes": pl.Int64,
    },
    "clocks": {  # offset from the times of a rank's device to the clock of rank 0, device 0
        "rank": pl.Int64,
        "device": pl.Int64,
        "offset_ns": pl.Int64,
        "residual_ns": pl.Int64,
        "method": pl.String,
    },
    "scopes": {
        "program_id": pl.Int64,
        "instruction": pl.String,
        "scope": pl.String,  # path of the module, with slashes; empty: none
        "phase": pl.String,  # forward, backward, remat, optimizer, other
        "weight": pl.Float64,  # of an instruction they sum to 1
    },
    "merged_operations": {  # operations that XLA merged with another, by the instruction that stands for all of them
        "program_id": pl.Int64,
        "instruction": pl.String,
        "kept_frame_id": pl.Int64,  # of the operation that is left
        "frame_id": pl.Int64,  # of those merged with it
        "operations": pl.Int64,
    },
    "avoidable": {  # work that another way of writing the program would not need
        "program_id": pl.Int64,
        "instruction": pl.String,
        "kind": pl.String,  # lookup, sort, donate, copy
        "fraction": pl.Float64,  # of the instruction's time
    },
    "attribution": {
        "program_id": pl.Int64,
        "instruction": pl.String,
        "frame_id": pl.Int64,  # null if how is `none`
        "weight": pl.Float64,  # of a fusion: by the cost of its parts; of an instruction they sum to 1
        "root_weight": pl.Float64,  # the same, a fusion given whole to its root
        "how": pl.String,
    },
}

EVENTS = ("executions", "ops", "compile", "ranges", "steps")  # tables as large as the run is long
# Exceptions that Polars raises for a damaged file; its decoders panic on some bytes.
UNREADABLE: tuple[type[Exception], ...] = (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException)
AGAIN = "`nightjar-profiling report` makes it again, of several ranks `merge`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """All tables of a capture."""

    programs: pl.DataFrame
    instructions: pl.DataFrame
    frames: pl.DataFrame
    executions: pl.DataFrame
    ops: pl.DataFrame
    kernels: pl.DataFrame
    collectives: pl.DataFrame
    groups: pl.DataFrame
    compile: pl.DataFrame
    ranges: pl.DataFrame
    steps: pl.DataFrame
    buffers: pl.DataFrame
    memory_over_time: pl.DataFrame
    clocks: pl.DataFrame
    scopes: pl.DataFrame
    merged_operations: pl.DataFrame
    avoidable: pl.DataFrame
    attribution: pl.DataFrame

    @property
    def device_time_ns(self) -> int:
        """Sum of the durations of all ops."""
        return int(self.ops["duration_ns"].sum())


def make_table(name: str, rows: Iterable[Row]) -> pl.DataFrame:
    """A frame with the columns of that table; an absent key is null."""
    return pl.DataFrame(list(rows), schema=SCHEMAS[name])


def fill_table(name: str, height: int, /, **columns: Any) -> pl.DataFrame:
    """A frame of whole columns: arrays, series, or one value for all rows; a column that is not given is null."""
    filled = []
    for column, kind in SCHEMAS[name].items():
        values = columns.pop(column, None)
        if values is None or isinstance(values, (int, float, str)):
            filled.append(pl.lit(values, kind).alias(column))  # takes no memory, unlike a series of one value
        else:
            filled.append(pl.lit(pl.Series(column, values)).cast(kind))
    if columns:
        raise TypeError(f"table {name!r} has no column {', '.join(columns)}")
    return pl.DataFrame(height=height).with_columns(filled)


def write_tables(folder: Path, tables: Tables) -> None:
    """Writes `<folder>/<table>.parquet`."""
    folder.mkdir(parents=True, exist_ok=True)
    for field in fields(tables):
        write_table(getattr(tables, field.name), folder / f"{field.name}.parquet")


def write_table(table: pl.DataFrame, path: Path) -> None:
    """Writes one table."""
    with writing(path):
        table.write_parquet(path)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Names the file that is written inside, as Polars' errors do not."""
    try:
        yield
    except UNREADABLE as error:
        raise ProfilingError(f"{path}: cannot be written: {error}.", "is the disk full?") from None


def read_tables(folder: Path) -> Tables:
    """Reads the tables written by `write_tables`."""
    return Tables(**{name: read_table(folder, name) for name in SCHEMAS})


def read_table(folder: Path, name: str) -> pl.DataFrame:
    """Reads one table."""
    return collect(scan_table(folder, name), folder, name)


def collect(query: pl.LazyFrame, folder: Path, name: str) -> pl.DataFrame:
    """The result of a query of one table."""
    try:
        return query.collect()
    except UNREADABLE as error:
        raise InputError(f"{folder / name}.parquet: cannot be read: {error}.", AGAIN) from None


def scan_table(folder: Path, name: str) -> pl.LazyFrame:
    """A table to query: only the columns and row groups that the query needs are read."""
    path = folder / f"{name}.parquet"
    if name == "avoidable" and not path.exists():  # captures made before 0.1.0 have none
        return make_table(name, ()).lazy()
    try:
        table = pl.scan_parquet(path)
        schema = dict(table.collect_schema())
    except UNREADABLE as error:
        raise InputError(f"{path}: cannot be read: {error}.", AGAIN) from None
    wanted = SCHEMAS[name]
    if {column: schema.get(column) for column in wanted} != wanted:
        raise InputError(f"{path}: columns are {schema}, expected {wanted}.", AGAIN)
    return table.select(list(wanted))  # without those of captures before 0.1.0 that are gone
