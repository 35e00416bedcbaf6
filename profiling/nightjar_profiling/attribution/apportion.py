"""Time of ops in whole nanoseconds by Python stack; stacks may share the time of an op.

In: the tables of a capture. Out: one row per device, instruction and stack. Weights are fractions and times are
integers. The shares of an instruction are cut at the rounded running sum of its weights, the last one at the end of its
time, so that they always add up to it. An op whose instruction is unknown becomes a row without a stack.
"""

from __future__ import annotations

from typing import Literal

import polars as pl

from nightjar_profiling.capture_folder.tables import Tables

DEVICE = ("rank", "device")
INSTRUCTION = ("program_id", "instruction")
Fusion = Literal["split", "root"]
"""Whether the time of a fusion is split over what was fused, or given whole to its root."""
WEIGHTS: dict[Fusion, str] = {"split": "weight", "root": "root_weight"}


def apportion_time(
    tables: Tables, by: tuple[str, ...] = DEVICE, fusion: Fusion = "split", time: str = "duration_ns"
) -> pl.DataFrame:
    """Time of the ops by instruction and stack: device time, or another of their columns.

    Args:
        by: columns of `ops` to keep apart besides the instruction; `()` sums over all devices.
        fusion: how the time of a fusion is divided.
        time: column of `ops`, in whole nanoseconds.

    Returns:
        Columns: `by`, `program_id`, `instruction`, `frame_id` (null: no stack), `how`, `count` (runs of the
        instruction; its shares repeat it) and `duration_ns`, which sums to the ops' total.
    """
    keys = [*by, *INSTRUCTION]
    spent = tables.ops.group_by(keys).agg(pl.col(time).sum().alias("total_ns"), pl.len().alias("count"))
    weights = tables.attribution.with_columns(weight=WEIGHTS[fusion]).filter(pl.col("weight") > 0)
    shares = spent.sort(keys).join(
        weights.sort(*INSTRUCTION, "frame_id"),
        on=INSTRUCTION,
        how="left",
        nulls_equal=True,
        maintain_order="left_right",
    )
    return cut_shares(shares, keys).select(
        *keys, "frame_id", pl.col("how").fill_null("none"), pl.col("count").cast(pl.Int64), "duration_ns"
    )


def cut_shares(shares: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    """The rows with `duration_ns`, their part of `total_ns` of their key by `weight` (null: all of it)."""
    ends = (
        (pl.col("total_ns") * pl.col("weight").fill_null(1.0).cum_sum().over(keys).clip(0.0, 1.0))
        .round()
        .cast(pl.Int64)
    )
    last = pl.int_range(pl.len()).over(keys) == pl.len().over(keys) - 1
    cut = shares.with_columns(end=pl.when(last).then("total_ns").otherwise(ends))
    return cut.with_columns(duration_ns=pl.col("end") - pl.col("end").shift(1, fill_value=0).over(keys))
