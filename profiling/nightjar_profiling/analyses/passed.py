"""Time spent on copies of parameters that a program returns untouched, and the remedy."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from nightjar_profiling.capture_folder.tables import Tables

WORTH_SAYING = 0.02  # of the device time


def advise_donation(tables: Tables) -> Iterator[str]:
    """A warning for each program that spends much of the device time on copies which donation spares."""
    key = ["program_id", "instruction"]
    passed = tables.attribution.filter(pl.col("how") == "passed").select(key).unique()
    spent = tables.ops.join(passed, on=key, how="semi").group_by("program_id").agg(pl.col("duration_ns").sum())
    names = tables.programs.select("program_id", "name").unique("program_id")
    named = spent.join(names, on="program_id").sort("duration_ns", descending=True).select("name", "duration_ns")
    for name, duration_ns in named.iter_rows():
        if duration_ns:
            share = duration_ns / tables.device_time_ns
        else:
            share = 0.0
        if share >= WORTH_SAYING:
            yield (
                f"{name}: {duration_ns / 1e6:.3f} ms ({share:.1%} of the device time) copy parameters that it returns "
                "untouched, as `nnx.jit` does with a model: donate them (donate_argnums), or do not return them."
            )
