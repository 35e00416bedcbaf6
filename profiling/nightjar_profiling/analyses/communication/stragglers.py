"""Devices that the others wait for.

In: collectives of several devices. Out: how late each device comes. A collective ends on all of its devices together,
so the one with the shortest duration came last; its delay is the longest duration minus its own, which needs no common
clock. A device that is late by chance is last in one collective of n on n devices; a slow one is last in most
collectives, and in every execution. Only the steady state counts, since a long compilation does not make a straggler.
"""

from __future__ import annotations

import polars as pl

from nightjar_profiling.analyses.communication.collectives import COLLECTIVE_KEY, number_runs
from nightjar_profiling.analyses.warmup import keep_steady_state
from nightjar_profiling.capture_folder.tables import Tables

DEVICE = ["rank", "device"]


def find_stragglers(tables: Tables) -> pl.DataFrame:
    """How late each device comes to the collectives; the one that causes the most waiting first.

    Returns:
        Columns: `rank`, `device`; `collectives` (in which it took part); `last_fraction` (of those, the fraction in
        which it came last); `late_ns` (median delay after the first device), `late_ns_p90`; `caused_wait_ns` (waiting
        of all others in the collectives in which it was last); `executions`, and `stability`: the fraction of program
        executions in which it caused the most waiting. Empty for a single device.
    """
    steady = keep_steady_state(tables, tables.collectives)
    runs = _measure_delays(tables.collectives if steady.is_empty() else steady)
    per_execution = (
        runs.group_by([*DEVICE, "program_id", "execution"])
        .agg(pl.col("caused_ns").sum())
        .with_columns(most=pl.col("caused_ns").max().over("program_id", "execution"))
        .with_columns(worst=(pl.col("caused_ns") == pl.col("most")) & (pl.col("most") > 0))
    )
    stable = per_execution.group_by(DEVICE).agg(executions=pl.len().cast(pl.Int64), stability=pl.col("worst").mean())
    return (
        runs.group_by(DEVICE)
        .agg(
            collectives=pl.len().cast(pl.Int64),
            last_fraction=pl.col("last").mean(),
            late_ns=pl.col("late_ns").median(),
            late_ns_p90=pl.col("late_ns").quantile(0.9),
            caused_wait_ns=pl.col("caused_ns").sum(),
        )
        .join(stable, on=DEVICE, how="left")
        .sort("caused_wait_ns", *DEVICE, descending=[True, False, False])
    )


def _measure_delays(collectives: pl.DataFrame) -> pl.DataFrame:
    """Each run with the delay of its device, whether the device was last, and the waiting that it caused."""
    took = pl.col("duration_ns")
    return (
        number_runs(collectives)
        .filter("shared")
        .with_columns(
            late_ns=took.max().over(COLLECTIVE_KEY) - took,
            # Of several shortest runs the first counts, so that no waiting counts twice.
            last=took.arg_min().over(COLLECTIVE_KEY) == pl.int_range(pl.len()).over(COLLECTIVE_KEY),
            waited_ns=(took - took.min()).sum().over(COLLECTIVE_KEY),
        )
        .with_columns(caused_ns=pl.when("last").then("waited_ns").otherwise(0))
    )
