"""Lanes for overlapping ops of a stream.

In: starts and ends, ordered by start. Out: a lane number each: the first free lane, so that ops in a lane never overlap
and a stream without overlaps has one lane.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

LANE = ("rank", "device", "stream", "sub")


def assign_lanes(starts: NDArray[Any], durations: NDArray[Any]) -> NDArray[np.int32]:
    """Lanes of ops.

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
