"""The data of the page's timeline: ops as columns of numbers, in lanes by rank, device and stream.

In: the ops, on one clock. Out: labelled lanes; the blocks of all lanes in sequence, with start, duration, instruction
and number of ops; and the intervals of exposed communication per device. Beyond LARGEST_BLOCKS ops, the shortest are
merged: ops of a lane that begin in the same slice of time become one block, and the page says so. Blocks are for
drawing only.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from nightjar_profiling.analyses.communication.overlap import find_exposed
from nightjar_profiling.capture_folder.tables import Tables

LANE = ("rank", "device", "stream", "sub")
MOST_EXPOSED = 50_000  # intervals of exposed communication; beyond, the shortest are left out
LARGEST_BLOCKS = 200_000  # a page of 5 MB that is drawn within a frame
SLICES = 20_000  # of the whole time; several per pixel of a screen


def timeline_data(tables: Tables, numbers: dict[tuple[int | None, str | None, str | None], int]) -> dict[str, Any]:
    """Lanes and blocks."""
    key = {"program_id": [], "instruction": [], "kernel": [], "number": []}  # type: dict[str, list[Any]]
    for (program_id, instruction, kernel), number in numbers.items():
        for name, value in zip(key, (program_id, instruction, kernel, number), strict=True):
            key[name].append(value)
    types = {"program_id": pl.Int64, "instruction": pl.String, "kernel": pl.String, "number": pl.Int32}
    origin_ns = tables.ops["start_ns"].min() or 0
    ops = (
        tables.ops.select(
            *LANE[:3],
            "program_id",
            "instruction",
            pl.when(pl.col("instruction").is_null()).then("kernel").alias("kernel"),
            (pl.col("start_ns") - origin_ns).alias("start"),
            pl.col("duration_ns").alias("duration"),
            pl.col("hidden_ns").fill_null(-1).alias("hidden"),
        )
        .join(pl.DataFrame(key, schema=types), on=["program_id", "instruction", "kernel"], how="left", nulls_equal=True)
        .sort(*LANE[:3], "start", "duration", descending=[False] * 4 + [True], nulls_last=True)
    )
    blocks = merge_short(split_overlaps(ops), LARGEST_BLOCKS)
    lanes = blocks.group_by(LANE, maintain_order=True).agg(pl.len().alias("count"))
    exposed = find_exposed(tables).top_k(MOST_EXPOSED, by="duration_ns").sort("rank", "device", "start_ns")
    return {
        "exposed": {
            "rank": exposed["rank"].cast(pl.Int32).to_numpy(),
            "device": exposed["device"].cast(pl.Int32).to_numpy(),
            "start": (exposed["start_ns"] - origin_ns).cast(pl.Float64).to_numpy(),
            "duration": exposed["duration_ns"].cast(pl.Float64).to_numpy(),
        },
        "lanes": [
            {"rank": rank, "device": device, "stream": stream or "", "sub": sub, "count": count}
            for rank, device, stream, sub, count in lanes.iter_rows()
        ],
        "start": blocks["start"].cast(pl.Float64).to_numpy(),
        "duration": blocks["duration"].cast(pl.Float64).to_numpy(),
        "hidden": blocks["hidden"].cast(pl.Float64).to_numpy(),
        "instruction": blocks["number"].fill_null(-1).to_numpy(),
        "merged": blocks["merged"].cast(pl.Int32).to_numpy(),
        "n_ops": tables.ops.height,
    }


def merge_short(ops: pl.DataFrame, largest: int) -> pl.DataFrame:
    """About `largest` blocks at most: keeps the longest ops, and merges the others per lane and slice of time."""
    single = ops.with_columns(merged=pl.lit(1, dtype=pl.UInt32))
    if ops.height <= largest:
        return single
    span = int((ops["start"] + ops["duration"]).max() or 1)  # type: ignore[arg-type]
    n_lanes = ops.select(pl.struct(LANE).n_unique()).item()
    slices = max(1, min(SLICES, largest // (2 * n_lanes)))
    kept = max(0, largest - slices * n_lanes)
    longest = np.zeros(ops.height, dtype=bool)
    longest[np.argsort(-ops["duration"].to_numpy(), kind="stable")[:kept]] = True
    short = (
        single.filter(~longest)
        .group_by(*LANE, pl.col("start") * slices // span, maintain_order=True)
        .agg(
            pl.col("start").min().alias("begin"),
            (pl.col("start") + pl.col("duration")).max().alias("end"),
            pl.lit(-1, dtype=pl.Int64).alias("hidden"),
            pl.col("number").sort_by("duration").last(),
            pl.len().alias("merged"),
        )
        .with_columns(start="begin", duration=pl.col("end") - pl.col("begin"))
    )
    columns = [*LANE, "start", "duration", "hidden", "number", "merged"]
    return pl.concat([single.filter(longest).select(columns), short.select(columns)]).sort(
        *LANE, "start", nulls_last=True
    )


def assign_lanes(starts: NDArray[Any], durations: NDArray[Any]) -> NDArray[np.int32]:
    """The first free lane for each op, by start: ops in a lane never overlap.

    >>> assign_lanes(np.array([0, 5, 6, 20]), np.array([10, 2, 1, 5])).tolist()
    [0, 1, 2, 0]
    """
    ends = starts + durations
    lanes = np.zeros(len(starts), dtype=np.int32)
    if not len(starts) or bool((starts[1:] >= np.maximum.accumulate(ends)[:-1]).all()):
        return lanes
    busy: list[tuple[int, int]] = []  # end, lane
    free: list[int] = []
    for number, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        while busy and busy[0][0] <= start:
            heappush(free, heappop(busy)[1])
        lane = heappop(free) if free else len(busy)
        lanes[number] = lane
        heappush(busy, (end, lane))
    return lanes


def split_overlaps(ops: pl.DataFrame) -> pl.DataFrame:
    """The ops with a column `sub`, their lane in the stream; sorted by lane."""
    parts = [
        part.with_columns(sub=assign_lanes(part["start"].to_numpy(), part["duration"].to_numpy()))
        for part in ops.partition_by(*LANE[:3], maintain_order=True)
    ]
    if not parts:
        return ops.with_columns(sub=pl.lit(0, dtype=pl.Int32))
    return pl.concat(parts).sort(*LANE, "start", nulls_last=True, maintain_order=True)
