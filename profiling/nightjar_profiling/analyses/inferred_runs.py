"""Programs and executions of traces that record none.

In: the tables of a trace. Out: the same tables, in which

- the ops of a trace without a single program belong to one, named `all work`, whose instructions are the kernels;
- executions of a program without any are inferred from its work: one per step of the host, if its ops lie in steps;
  otherwise as many as its repeated kernels can be divided into, each with the same kernels equally often; otherwise
  one, the whole trace.

Nothing is inferred if the trace records some: ops without a number are then outside of executions.
"""

from __future__ import annotations

from functools import reduce
from math import gcd

import polars as pl

from nightjar_profiling.analyses.steps import assign_steps
from nightjar_profiling.capture_folder.tables import SCHEMAS, Tables, make_table

ALL_WORK = "all work"
PROGRAM_ID = 0
RUN = ["rank", "device", "program_id"]
LEAST_SHARE = 0.5  # of a program's time, in the repeated kernels that mark the executions


def infer_runs(tables: dict[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
    """The tables with missing programs and executions added."""
    tables = _add_program(tables)
    recorded = set(tables["executions"]["program_id"].unique())
    open_ops = tables["ops"].filter(pl.col("program_id").is_not_null() & ~pl.col("program_id").is_in(list(recorded)))
    numbered = open_ops.filter(pl.col("execution").is_not_null())
    open_ops = open_ops.filter(~pl.col("program_id").is_in(numbered["program_id"].unique().implode()))
    if not open_ops.is_empty():
        tables["ops"] = _number(tables, open_ops)
    tables["executions"] = pl.concat([tables["executions"], _span(tables["ops"], recorded)])
    return tables


def _add_program(tables: dict[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
    ops = tables["ops"]
    if ops.is_empty() or ops["program_id"].is_not_null().any():
        return tables
    ops = ops.with_columns(program_id=pl.lit(PROGRAM_ID, pl.Int64), instruction=pl.coalesce("instruction", "kernel"))
    program = {"program_id": PROGRAM_ID, "name": ALL_WORK}
    return {**tables, "ops": ops, "programs": pl.concat([tables["programs"], make_table("programs", [program])])}


def _number(tables: dict[str, pl.DataFrame], open_ops: pl.DataFrame) -> pl.DataFrame:
    """The ops, numbered if their program has no executions."""
    row = "row"
    ops = tables["ops"].with_row_index(row)
    picked = ops.join(open_ops.select(RUN).unique(), on=RUN, how="semi")
    steps = assign_steps(Tables(**{**tables, "ops": picked.drop(row)}))["step_ns"]
    picked = picked.with_columns(step=steps).sort("start_ns")
    parts = [part.select(row, inferred=_count_runs(part)) for _, part in picked.group_by(RUN, maintain_order=True)]
    numbers = pl.concat(parts)
    return (
        ops.join(numbers, on=row, how="left", maintain_order="left")
        .with_columns(execution=pl.coalesce("execution", "inferred"))
        .select(list(SCHEMAS["ops"]))
    )


def _count_runs(ops: pl.DataFrame) -> pl.Series:
    """The execution of each op of a program on a device, which are in the order of their start."""
    if ops["step"].n_unique() > 1 and ops["step"].null_count() * 2 < ops.height:
        return ops["step"].rank("dense").cast(pl.Int64) - 1
    key = pl.coalesce("instruction", "kernel")
    if ops["thunk"].is_not_null().all():
        firsts = ops.with_columns(is_first=pl.col("thunk").is_first_distinct(), key=key)
    else:
        firsts = ops.with_columns(is_first=pl.lit(value=True), key=key)
    counts = (
        firsts.drop_nulls("key")
        .group_by("key", maintain_order=True)
        .agg(count=pl.col("is_first").sum(), ns=pl.col("duration_ns").sum())
        .filter(pl.col("count") > 1)
    )
    runs = reduce(gcd, counts["count"].to_list(), 0)
    anchors = counts.filter(pl.col("count") == runs)["key"]
    if runs < 2 or anchors.is_empty() or int(counts["ns"].sum()) < LEAST_SHARE * int(ops["duration_ns"].sum()):
        return pl.Series([0] * ops.height, dtype=pl.Int64)
    begins = firsts.select((pl.col("is_first") & (pl.col("key") == anchors[0])).cum_sum().cast(pl.Int64))
    number = begins.to_series() - 1
    number = number.set(number < 0, None)
    if not _are_alike(firsts.with_columns(number=number).filter("is_first"), counts, runs):
        return pl.Series([0] * ops.height, dtype=pl.Int64)
    return number


def _are_alike(firsts: pl.DataFrame, counts: pl.DataFrame, runs: int) -> bool:
    """Whether every execution has the same kernels equally often, but for those that ran once in the trace."""
    own = firsts.join(counts, on="key", how="semi").group_by("number", "key").agg(own=pl.len())
    return bool(own.join(counts, on="key").select((pl.col("own") * runs == pl.col("count")).all()).item())


def _span(ops: pl.DataFrame, recorded: set[int]) -> pl.DataFrame:
    """The rows of `executions` of programs that have none."""
    spans = (
        ops.filter(pl.col("execution").is_not_null() & ~pl.col("program_id").is_in(list(recorded)))
        .group_by(*RUN, "execution")
        .agg(start_ns=pl.col("start_ns").min(), end_ns=(pl.col("start_ns") + pl.col("duration_ns")).max())
        .with_columns(duration_ns=pl.col("end_ns") - pl.col("start_ns"), complete=pl.lit(None, pl.Boolean))
        .sort("start_ns")
    )
    return spans.select(pl.col(name).cast(kind) for name, kind in SCHEMAS["executions"].items())
