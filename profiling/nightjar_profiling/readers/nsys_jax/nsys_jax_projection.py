"""Executions and ops of the projection that nsys made when the archive was written.

In: `nvtx_gpu_proj_trace/trace.parquet` of one process, in any of its three layouts. Out: executions and ops of that
process, an op for each innermost thunk.

| layout | nsys | columns |
|---|---|---|
| A | to 2024.4 | `Name` with its domain, host and device times, number of ops; an unnamed row of other ops |
| B | 2024.5 to 2025 | `Text` without a domain, device times |
| C | 2026.1 and later | B and `Domain` |
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from nightjar_profiling.capture_folder.tables import SCHEMAS
from nightjar_profiling.errors import InputError
from nightjar_profiling.readers.annotations.nesting import find_named_parents
from nightjar_profiling.readers.annotations.xla_ranges import XlaRanges, number_executions, read_xla_ranges, take
from nightjar_profiling.readers.annotations.xla_titles import DOMAIN, collect_titles
from nightjar_profiling.readers.nsys_jax.nsys_jax_launchers import Devices
from nightjar_profiling.readers.projection import Ints, look_up

FEWEST_BEFORE = 2  # earlier runs that are needed to judge the last run of a program
LAYOUT_A = {"Name", "Projected Start", "Projected Duration", "PID", "TID", "RangeId", "ParentId"}
LAYOUT_B = {"Text", "Start", "End", "PID", "TID", "Range ID", "Parent ID"}
UNUSED = {"Orig Duration", "Style", "Lvl", "NumChild", "RangeStack", "Rank"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Projected:
    """Projected ranges of a process, and its executions and ops.

    Attributes:
        ranges: `range_id`, `PID`, `TID`, `start_ns`, `duration_ns`, `launch_ns`, `n_ops`, the last two null in
            layouts B and C; by device start.
        xla: XLA's fields of the titles.
        executions: numbered runs of programs; empty before `on_devices`.
        ops: the table.
    """

    ranges: pl.DataFrame
    parent: Ints
    xla: XlaRanges
    executions: pl.DataFrame
    ops: pl.DataFrame

    def on_devices(self, devices: Devices, warnings: list[str]) -> Projected:
        executions = _make_executions(self, devices, warnings)
        return replace(self, executions=executions, ops=_make_ops(self, executions, devices, warnings))


def read_projected(trace: pl.DataFrame, where: str, warnings: list[str]) -> Projected:
    """Reads the projection of a process."""
    ranges = _normalise(trace, where)
    if ranges.is_empty():
        warnings.append(f"{where}: no ranges with device work.")
    parent = find_named_parents(ranges["range_id"], ranges["parent_id"], where)
    xla = read_xla_ranges(collect_titles(ranges["title"]), parent)
    empty = pl.DataFrame()
    return Projected(ranges=ranges.drop("title", "parent_id"), parent=parent, xla=xla, executions=empty, ops=empty)


def _normalise(trace: pl.DataFrame, where: str) -> pl.DataFrame:
    columns = set(trace.columns)
    whole, none = pl.Int64, pl.lit(None, pl.Int64)
    if columns >= LAYOUT_A:
        table = trace.filter(pl.col("RangeId").is_not_null()).select(
            title=pl.when(pl.col("Name").str.starts_with(f"{DOMAIN}:")).then(pl.col("Name").str.slice(len(DOMAIN) + 1)),
            range_id=pl.col("RangeId").cast(whole),
            parent_id=pl.col("ParentId").cast(whole),
            start_ns=pl.col("Projected Start").cast(whole),
            duration_ns=pl.col("Projected Duration").cast(whole),
            launch_ns=pl.col("Orig Start").cast(whole) if "Orig Start" in columns else none,
            n_ops=pl.col("NumGPUOps").cast(whole) if "NumGPUOps" in columns else none,
            PID=pl.col("PID").cast(whole),
            TID=pl.col("TID").cast(whole),
        )
    elif columns >= LAYOUT_B:
        table = trace.filter(pl.col("Range ID").is_not_null()).select(
            title=pl.when(pl.col("Domain") == DOMAIN).then("Text") if "Domain" in columns else pl.col("Text"),
            range_id=pl.col("Range ID").cast(whole),
            parent_id=pl.col("Parent ID").cast(whole),
            start_ns=pl.col("Start").cast(whole),
            duration_ns=(pl.col("End") - pl.col("Start")).cast(whole),
            launch_ns=none,
            n_ops=none,
            PID=pl.col("PID").cast(whole),
            TID=pl.col("TID").cast(whole),
        )
    else:
        hint = "a newer nsys-jax may have written it; please report it"
        raise InputError(f"{where}: unknown layout, columns {sorted(columns)}.", hint)
    return table.drop_nulls(["start_ns", "duration_ns", "PID", "TID"]).sort("start_ns", maintain_order=True)


def _make_executions(projected: Projected, devices: Devices, warnings: list[str]) -> pl.DataFrame:
    xla, ranges = projected.xla, projected.ranges
    thunks = innermost_thunks(xla)
    counts = np.bincount(xla.module[thunks][xla.module[thunks] >= 0])
    modules = np.flatnonzero(counts)
    rows = pl.Series(modules)
    runs = (
        ranges[modules]
        .select("PID", "TID", "start_ns", "duration_ns", "n_ops")
        .with_columns(run=rows, n_thunks=pl.Series(counts[modules]), rank=pl.lit(devices.rank, pl.Int64))
    )
    runs = runs.with_columns(program_id=xla.gather("program_id", modules), name=xla.gather("module", modules))
    runs = runs.join(devices.of_thread, on=["PID", "TID"], how="left", maintain_order="left")
    runs = number_executions(runs.with_columns(pl.col("device").fill_null(devices.first)))
    numbered = runs.with_columns(_looks_complete())
    for row in numbered.filter(~pl.col("complete")).iter_rows(named=True):
        warnings.append(f"The last run of {row['name']} looks incomplete: it launched less than any run before it.")
    return numbered


def _looks_complete() -> pl.Expr:
    """False for a last run with less work than any run before it; programs that the autotuner times are not judged."""
    work = pl.coalesce("n_ops", "n_thunks")
    program = ["device", "program_id"]
    before = (pl.len() - 1).over(program)
    least = work.sort_by("execution").slice(0, pl.len() - 1).min().over(program)
    last = pl.col("execution") == before
    incomplete = last & (before >= FEWEST_BEFORE) & (work < least) & (pl.col("program_id") >= 0)
    return pl.when(incomplete).then(pl.lit(False)).alias("complete")


def innermost_thunks(xla: XlaRanges) -> Ints:
    """Rows of the thunks that contain no other thunk."""
    return np.flatnonzero(xla.is_thunk & ~xla.has_thunk)


def _make_ops(projected: Projected, executions: pl.DataFrame, devices: Devices, warnings: list[str]) -> pl.DataFrame:
    xla, ranges = projected.xla, projected.ranges
    rows = innermost_thunks(xla)
    module = xla.module[rows]
    stray = int((module < 0).sum())
    if stray:
        warnings.append(f"{stray} thunks belong to no program: the trace began during its run.")
    instruction = xla.gather("instruction", rows)
    in_program = pl.Series(module >= 0)
    execution = take(executions["execution"], look_up(executions["run"].to_numpy(), module))
    ops = (
        ranges[rows]
        .select("PID", "TID", "start_ns", "duration_ns", "launch_ns", thunk="range_id")
        .with_columns(
            execution=execution,
            kernel=instruction,
            instruction=pl.when(in_program).then(instruction),
            program_id=xla.gather("program_id", module),
            kind=pl.lit("thunk"),
        )
    )
    ops = ops.join(devices.of_thread, on=["PID", "TID"], how="left", maintain_order="left")
    ops = ops.with_columns(pl.col("device").fill_null(devices.first), rank=pl.lit(devices.rank, pl.Int64))
    absent = [pl.lit(None).alias(name) for name in SCHEMAS["ops"] if name not in ops.columns]
    return ops.with_columns(absent).select(pl.col(name).cast(kind) for name, kind in SCHEMAS["ops"].items())
