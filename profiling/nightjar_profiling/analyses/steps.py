"""Time per program and per step.

In: executions, ops and steps. Out: one row per program, with the spread over its executions, and one row per step and
rank.
"""

from __future__ import annotations

import polars as pl

from nightjar_profiling.capture_folder.tables import Tables

RUN = ["rank", "device", "program_id", "execution"]
COMMUNICATES = pl.col("hidden_ns").is_not_null()
EXPOSED = (pl.col("duration_ns") - pl.col("hidden_ns")).filter(COMMUNICATES).sum()


def sum_executions(tables: Tables) -> pl.DataFrame:
    """Device time of every execution.

    Returns:
        Columns: `rank`, `device`, `program_id`, `execution`, `start_ns`, `duration_ns` (from start to end, with gaps),
        `device_ns` (sum over its ops), `n_ops`, `exposed_ns` (communication that no computation
        overlaps).
    """
    sums = tables.ops.group_by(RUN).agg(
        device_ns=pl.col("duration_ns").sum(), n_ops=pl.len().cast(pl.Int64), exposed_ns=EXPOSED
    )
    zero = ("device_ns", "n_ops", "exposed_ns")
    return (
        tables.executions.join(sums, on=RUN, how="left")
        .with_columns(pl.col(zero).fill_null(0))
        .select(*RUN, "start_ns", "duration_ns", *zero)
        .sort("rank", "device", "start_ns")
    )


def summarise_programs(tables: Tables) -> pl.DataFrame:
    """Programs, largest device time first.

    Returns:
        Columns: `program_id`, `name`, `executions` (over all devices), `n_ops` (mean), `device_ns` (sum),
        `device_fraction`, `duration_ns_mean`, `duration_ns_std` (null for one execution), `exposed_ns` (sum). A
        program whose executions the trace does not record has 0 of them, and its means are null.
    """
    runs = sum_executions(tables)
    total = pl.col("device_ns").sum()
    no_execution = pl.col("program_id").is_not_null() & pl.col("execution").is_null()
    others = tables.ops.filter(no_execution).group_by("program_id")
    loose = others.agg(device_ns=pl.col("duration_ns").sum(), exposed_ns=EXPOSED)
    sums = runs.group_by("program_id").agg(
        executions=pl.len().cast(pl.Int64),
        n_ops=pl.col("n_ops").mean(),
        device_ns=pl.col("device_ns").sum(),
        duration_ns_mean=pl.col("duration_ns").mean(),
        duration_ns_std=pl.col("duration_ns").std(),
        exposed_ns=pl.col("exposed_ns").sum(),
    )
    return (
        pl.concat([sums, loose], how="diagonal")
        .group_by("program_id")
        .agg(
            pl.col("executions", "device_ns", "exposed_ns").sum(),
            pl.col("n_ops", "duration_ns_mean", "duration_ns_std").drop_nulls().first(),
        )
        .join(tables.programs.select("program_id", "name").unique("program_id"), on="program_id", how="left")
        .with_columns(device_fraction=pl.when(total > 0).then(pl.col("device_ns") / total))
        .select(
            *("program_id", "name", "executions", "n_ops", "device_ns", "device_fraction"),
            *("duration_ns_mean", "duration_ns_std", "exposed_ns"),
        )
        .sort("device_ns", "program_id", descending=[True, False])
    )


def assign_steps(tables: Tables) -> pl.DataFrame:
    """The ops with `step`, in which the host launched them, or else they started, and `step_ns`, its start.

    Both are null outside. A program that counts its steps from 0 in each epoch has several of one number.
    """
    steps = tables.steps.select("rank", "step", step_ns="start_ns", end_ns=pl.col("start_ns") + pl.col("duration_ns"))
    called = tables.ops.with_row_index("row").with_columns(called_ns=pl.coalesce("launch_ns", "start_ns"))
    inside = pl.when(pl.col("called_ns") < pl.col("end_ns")).then(pl.col("step", "step_ns"))
    return (
        called.sort("called_ns")
        .join_asof(steps.sort("step_ns"), left_on="called_ns", right_on="step_ns", by="rank", check_sortedness=False)
        .with_columns(inside)
        .sort("row")
        .drop("row", "called_ns", "end_ns")
    )


def summarise_steps(tables: Tables) -> pl.DataFrame:
    """Steps of every rank; empty if the program marked none.

    Returns:
        Columns: `rank`, `step`, `duration_ns` (on the host), `device_ns` (sum over its ops), `n_ops`, `exposed_ns`.
    """
    sums = (
        assign_steps(tables)
        .filter(pl.col("step").is_not_null())
        .group_by("rank", "step_ns")
        .agg(device_ns=pl.col("duration_ns").sum(), n_ops=pl.len().cast(pl.Int64), exposed_ns=EXPOSED)
    )
    zero = ("device_ns", "n_ops", "exposed_ns")
    return (
        tables.steps.select("rank", "step", "duration_ns", step_ns="start_ns")
        .join(sums, on=["rank", "step_ns"], how="left")
        .with_columns(pl.col(zero).fill_null(0))
        .sort("rank", "step", "step_ns")
        .drop("step_ns")
    )
