"""Thunks that end after one that reads their result has begun, which cannot be.

In: the ops of a capture, and its programs. Out: such thunks, each with the first of its readers, and the ops without
the time that is impossible. A busy machine's traces hold a few: a thread was taken off its core between the completion
of a thunk and its end event. Many say that XLA records ends in a way that the reader does not know.
Kernels of a GPU are not judged: the device records their ends, and programmatic dependent launch begins a kernel before
the one that it waits for has ended.

A reader is an instruction that ran and takes the value as an operand, directly or through ones that did not run: a
bitcast, an element of a tuple, the parameter of a computation. A new tuple is not followed: its elements look alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import polars as pl

from nightjar_profiling.attribution.data_flow import Flow
from nightjar_profiling.hlo.hlo import Program

RUN = ("rank", "device", "program_id", "execution")
EXPLAINED_FRACTION = 0.02  # of the device time; 0.03 % at most were seen, with a load of 15 on two cores
OUTLIVED = {
    "rank": pl.Int64,
    "device": pl.Int64,
    "program_id": pl.Int64,
    "execution": pl.Int64,
    "instruction": pl.String,
    "reader": pl.String,
    "start_ns": pl.Int64,
    "duration_ns": pl.Int64,
    "impossible_ns": pl.Int64,
}


def find_outlived(ops: pl.DataFrame, programs: Mapping[int, Program]) -> pl.DataFrame:
    """Thunks that end after a reader of their result has begun in the same run of their program.

    Args:
        ops: as in `tables.SCHEMAS`.
        programs: by program id; ops of others cannot be judged.

    Returns:
        Columns: `rank`, `device`, `program_id`, `execution`, `instruction`, `reader` (that began first), `start_ns`,
        `duration_ns` and `impossible_ns` (the part of the duration after the reader's start). Longest first.
    """
    ops = ops.filter(kind="thunk")
    ran = ops.select("program_id", "instruction").drop_nulls().unique()
    edges = [
        (number, *edge)
        for (number,), names in ran.group_by("program_id")
        if number in programs
        for edge in find_readers(programs[number], names["instruction"])
    ]
    columns = {"program_id": pl.Int64, "instruction": pl.String, "reader": pl.String}
    timed = ops.select(*RUN, "instruction", "start_ns", "duration_ns").with_columns(pl.col("execution").fill_null(-1))
    readers = timed.select(*RUN, reader="instruction", start_ns="start_ns", begin_ns="start_ns").sort("start_ns")
    return (
        timed.join(pl.DataFrame(edges, schema=columns, orient="row"), on=("program_id", "instruction"))
        .sort("start_ns")
        .join_asof(readers, on="start_ns", by=(*RUN, "reader"), strategy="forward", check_sortedness=False)
        .with_columns(impossible_ns=pl.col("start_ns") + pl.col("duration_ns") - pl.col("begin_ns"))
        .filter(pl.col("impossible_ns") > 0)
        .sort("impossible_ns", "start_ns", "reader", descending=[True, False, False])
        .unique([*RUN, "instruction", "start_ns"], keep="first", maintain_order=True)
        .with_columns(execution=pl.when(pl.col("execution") >= 0).then("execution"))
        .select(list(OUTLIVED))
    )


def find_readers(program: Program, names: Iterable[str]) -> list[tuple[str, str]]:
    """Pairs of instructions of which the second reads the result of the first."""
    flow, ran = Flow(program), {name for name in names if name in program.instructions}
    running = {program.instructions[name].computation for name in ran}  # others are run as a whole: fusions
    pairs = []
    for name in sorted(ran):
        waiting, seen = flow.after(name), set[str]()
        while waiting:
            reader = waiting.pop()
            if reader in seen or reader == name:
                continue
            seen.add(reader)
            if reader in ran:
                pairs.append((name, reader))
            elif (instruction := program.instructions[reader]).opcode != "tuple" and instruction.computation in running:
                waiting += flow.after(reader)
    return pairs


def cut_outlived(ops: pl.DataFrame, outlived: pl.DataFrame) -> pl.DataFrame:
    """The ops, each ended where the first reader of its result began; the duration of such an op is all uncertain."""
    if outlived.is_empty():
        return ops
    key = [*RUN, "instruction", "start_ns"]
    cut = pl.col("impossible_ns").is_not_null()
    return (
        ops.join(outlived.select(*key, "impossible_ns"), on=key, how="left", nulls_equal=True, maintain_order="left")
        .with_columns(duration_ns=pl.col("duration_ns") - pl.col("impossible_ns").fill_null(0))
        .with_columns(uncertain_ns=pl.when(cut).then("duration_ns").otherwise("uncertain_ns"))
        .drop("impossible_ns")
    )


def explain_outlived(outlived: pl.DataFrame, device_time_ns: int) -> list[str]:
    """A warning if they are more than a busy machine explains."""
    impossible_ns = int(outlived["impossible_ns"].sum())
    if impossible_ns <= EXPLAINED_FRACTION * device_time_ns:
        return []
    worst = outlived.row(0, named=True)
    return [
        f"By the trace, {outlived.height:,} ops end after an op that reads their result has begun, such as "
        f"{worst['instruction']!r}, read by {worst['reader']!r}: {impossible_ns / 1e6:.3f} ms were cut off. "
        "This XLA may record the ends of ops in another way than the versions that are known."
    ]
