"""Which rank do the others wait for, how late is it, and is it always the same?

In: collectives of several devices. Out: how late each device comes. A collective ends on all of them together, so
that the one on which it was shortest came last; how late a device came is the longest duration less its own, which
needs no common clock. A device that is last by chance is last in one collective of n by n; one that is slow is last in
most, and in every execution. The steady state counts: who compiled longest is no straggler.
"""

from __future__ import annotations

import polars as pl

from nightjar_profiling.analyses.communication.collective_matching import TOGETHER, number_runs
from nightjar_profiling.analyses.warmup import keep_steady
from nightjar_profiling.capture_folder.tables import Tables

DEVICE = ["rank", "device"]


def find_stragglers(tables: Tables) -> pl.DataFrame:
    """How late each device comes to the collectives, most waited for first.

    Returns:
        Columns: `rank`, `device`; `collectives` (in which it took part); `last_fraction` (of those, the share in which
        it came last); `late_ns` (how much later than the first device it came, median), `late_ns_p90`; `caused_wait_ns`
        (waiting of all others in the collectives in which it was last); `executions`, and `stability`: the share of the
        program executions in which it is the device that caused the most waiting. Empty for a single device.
    """
    steady = keep_steady(tables, tables.collectives)
    runs = _lateness(tables.collectives if steady.is_empty() else steady)
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


def _lateness(collectives: pl.DataFrame) -> pl.DataFrame:
    """Each run with how late its device came, whether it was last, and the waiting that it then caused."""
    took = pl.col("duration_ns")
    return (
        number_runs(collectives)
        .filter("shared")
        .with_columns(
            late_ns=took.max().over(TOGETHER) - took,
            # Of several that are shortest, the first counts, so that no waiting is caused twice.
            last=took.arg_min().over(TOGETHER) == pl.int_range(pl.len()).over(TOGETHER),
            waited_ns=(took - took.min()).sum().over(TOGETHER),
        )
        .with_columns(caused_ns=pl.when("last").then("waited_ns").otherwise(0))
    )
