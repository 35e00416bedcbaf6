"""Clock offsets between devices, estimated from collectives.

In: the table `collectives`. Out: the table `clocks`. A collective ends on all of its devices at about the same time;
differences between the recorded ends are the clock offset plus some jitter. The offset of a device is the median, over
the collectives that it shares with the first device in one group, of how much earlier its ends were recorded; the
residual is the median distance from that median. A device that shares no group with the first is aligned through one
that does, and so on. A device that no chain of groups connects with the first is not aligned, and has no row.

Source: NVIDIA/JAX-Toolbox:.github/container/nsys_jax/nsys_jax/analysis.py (`align_profiler_data_timestamps`), which
uses the mean over devices as the common clock
"""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from nightjar_profiling.analyses.communication.collectives import COLLECTIVE_KEY, number_runs
from nightjar_profiling.capture_folder.tables import SCHEMAS, Tables

ON_DEVICES = ("executions", "ops", "collectives")
SIGNIFICANT = 3  # residuals: about two standard deviations
METHOD = "ends of common collectives"


def estimate_clocks(collectives: pl.DataFrame) -> pl.DataFrame:
    """The table `clocks`; empty if fewer than two devices share a collective."""
    shared = number_runs(collectives).filter("shared")
    ends = shared.select(*COLLECTIVE_KEY, "rank", "device", end_ns=pl.col("start_ns") + pl.col("duration_ns"))
    devices = ends.select("rank", "device").unique().sort("rank", "device")
    if devices.height < 2:
        return pl.DataFrame(schema=SCHEMAS["clocks"])
    aligned = devices.head(1).with_columns(offset_ns=pl.lit(0, pl.Int64), residual_ns=pl.lit(0, pl.Int64))
    while (added := _align_next(ends, aligned)).height:
        aligned = pl.concat([aligned, added])
    if aligned.height < 2:
        return pl.DataFrame(schema=SCHEMAS["clocks"])
    return aligned.with_columns(method=pl.lit(METHOD)).select(list(SCHEMAS["clocks"])).sort("rank", "device")


def _align_next(ends: pl.DataFrame, aligned: pl.DataFrame) -> pl.DataFrame:
    """Offsets and residuals of unaligned devices that share a collective with an aligned one."""
    reference = ends.join(aligned, on=["rank", "device"], how="inner").group_by(COLLECTIVE_KEY).agg(
        first_ns=(pl.col("end_ns") + pl.col("offset_ns")).sort_by("rank", "device").first(),
    )  # fmt: skip
    skews = (
        ends.join(aligned, on=["rank", "device"], how="anti")
        .join(reference, on=COLLECTIVE_KEY, how="inner", nulls_equal=True)
        .with_columns(offset_ns=pl.col("first_ns") - pl.col("end_ns"))
    )
    middle = pl.col("offset_ns").median()
    return skews.group_by("rank", "device").agg(
        offset_ns=middle.round().cast(pl.Int64),
        residual_ns=(pl.col("offset_ns") - middle).abs().median().round().cast(pl.Int64),
    )


def on_common_clock(table: pl.DataFrame, clocks: pl.DataFrame) -> pl.DataFrame:
    """A table with `rank`, `device` and `start_ns`, with its starts on the clock of the first device.

    An offset below SIGNIFICANT residuals is not distinguishable from jitter, and is not applied.
    """
    significant = clocks.filter(pl.col("offset_ns").abs() > SIGNIFICANT * pl.col("residual_ns"))
    offsets = significant.select("rank", "device", "offset_ns")
    return (
        table.join(offsets, on=["rank", "device"], how="left", maintain_order="left")
        .with_columns(pl.col("start_ns") + pl.col("offset_ns").fill_null(0))
        .drop("offset_ns")
    )


def align(tables: Tables) -> Tables:
    """The tables with all device times on the clock of the first device, for devices with a known offset."""
    if tables.clocks.filter(pl.col("offset_ns") != 0).is_empty():
        return tables
    moved = {name: on_common_clock(getattr(tables, name), tables.clocks) for name in ON_DEVICES}
    return replace(tables, **moved)
