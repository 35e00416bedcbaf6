"""By how much do the clocks of the devices differ?

In: the table `collectives`. Out: the table `clocks`. A collective ends on all of its devices at about the same time;
what its recorded ends differ by is the difference of the clocks, and some jitter. The offset of a device is the
median, over the collectives that both took part in as one group, of how much earlier than on the first device its ends
were recorded; the residual is the median distance from that median. A device that shares no group with the first is
aligned by one that does, and so on. Devices that nothing connects with the first are not aligned, and have no row.

Source: NVIDIA/JAX-Toolbox:.github/container/nsys_jax/nsys_jax/analysis.py (`align_profiler_data_timestamps`), which
takes the mean over devices for the common clock
"""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from nightjar_profiling.analyses.communication.collective_matching import TOGETHER, number_runs
from nightjar_profiling.capture_folder.tables import SCHEMAS, Tables

ON_DEVICES = ("executions", "ops", "collectives")
SIGNIFICANT = 3  # median distances: two standard deviations
METHOD = "ends of common collectives"


def estimate_clocks(collectives: pl.DataFrame) -> pl.DataFrame:
    """The table `clocks`, empty where fewer than two devices share a collective."""
    shared = number_runs(collectives).filter("shared")
    ends = shared.select(*TOGETHER, "rank", "device", end_ns=pl.col("start_ns") + pl.col("duration_ns"))
    devices = ends.select("rank", "device").unique().sort("rank", "device")
    if devices.height < 2:
        return pl.DataFrame(schema=SCHEMAS["clocks"])
    found = devices.head(1).with_columns(offset_ns=pl.lit(0, pl.Int64), residual_ns=pl.lit(0, pl.Int64))
    while (aligned := _align_next(ends, found)).height:
        found = pl.concat([found, aligned])
    if found.height < 2:
        return pl.DataFrame(schema=SCHEMAS["clocks"])
    return found.with_columns(method=pl.lit(METHOD)).select(list(SCHEMAS["clocks"])).sort("rank", "device")


def _align_next(ends: pl.DataFrame, found: pl.DataFrame) -> pl.DataFrame:
    """Offsets and residuals of the devices that share a collective with one that is aligned, and are not yet."""
    known = ends.join(found, on=["rank", "device"], how="inner").group_by(TOGETHER).agg(
        first_ns=(pl.col("end_ns") + pl.col("offset_ns")).sort_by("rank", "device").first(),
    )  # fmt: skip
    skews = (
        ends.join(found, on=["rank", "device"], how="anti")
        .join(known, on=TOGETHER, how="inner", nulls_equal=True)
        .with_columns(offset_ns=pl.col("first_ns") - pl.col("end_ns"))
    )
    middle = pl.col("offset_ns").median()
    return skews.group_by("rank", "device").agg(
        offset_ns=middle.round().cast(pl.Int64),
        residual_ns=(pl.col("offset_ns") - middle).abs().median().round().cast(pl.Int64),
    )


def on_common_clock(table: pl.DataFrame, clocks: pl.DataFrame) -> pl.DataFrame:
    """A table with `rank`, `device` and `start_ns`, its starts by the clock of the first device.

    An offset of less than SIGNIFICANT residuals cannot be told from jitter, and moves nothing.
    """
    told = clocks.filter(pl.col("offset_ns").abs() > SIGNIFICANT * pl.col("residual_ns"))
    offsets = told.select("rank", "device", "offset_ns")
    return (
        table.join(offsets, on=["rank", "device"], how="left", maintain_order="left")
        .with_columns(pl.col("start_ns") + pl.col("offset_ns").fill_null(0))
        .drop("offset_ns")
    )


def align(tables: Tables) -> Tables:
    """The tables, what ran on devices by the clock of the first of them, as far as the clocks are known."""
    if tables.clocks.filter(pl.col("offset_ns") != 0).is_empty():
        return tables
    moved = {name: on_common_clock(getattr(tables, name), tables.clocks) for name in ON_DEVICES}
    return replace(tables, **moved)
