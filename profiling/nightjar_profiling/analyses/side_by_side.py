"""Clock time of each op on devices that run ops side by side.

In: ops. Out: `busy_ns` of each: every moment of a device is divided equally among the ops that run on it then. The sum
is the time in which the device was busy, which an outside clock agrees with; the durations add up to more. n log n for
n ops.
"""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from nightjar_profiling.analyses.intervals import Times
from nightjar_profiling.attribution.apportion import DEVICE

NOTABLE = 0.01  # share of the device time from which a summary reports ops side by side


def divide_moments(ops: pl.DataFrame) -> pl.DataFrame:
    """The ops with `busy_ns`, in the same order.

    >>> ops = pl.DataFrame({"rank": 0, "device": 0, "start_ns": [0, 4, 20], "duration_ns": [10, 10, 5]})
    >>> divide_moments(ops)["busy_ns"].to_list()
    [7, 7, 5]
    """
    starts = ops["start_ns"].to_numpy()
    ends = starts + ops["duration_ns"].to_numpy()
    busy = np.zeros(len(ops))
    for rows in ops.select(*DEVICE).with_row_index("row").group_by(DEVICE).agg("row")["row"]:
        of_device = rows.to_numpy()
        busy[of_device] = _divide(starts[of_device], ends[of_device])
    return ops.with_columns(busy_ns=pl.Series(busy.round(), dtype=pl.Int64))


def _divide(starts: Times, ends: Times) -> NDArray[np.float64]:
    if (starts[1:] >= ends[:-1]).all():  # one after the other
        return (ends - starts).astype(np.float64)
    edges = np.concatenate([starts, ends])
    order = np.argsort(edges, kind="stable")
    running = np.cumsum(np.where(order < len(starts), 1, -1))[:-1]  # from each edge to the next
    passed = np.zeros(len(edges))  # for an op that runs from the first edge to this one
    passed[order[1:]] = np.cumsum(np.diff(edges[order]) / np.maximum(running, 1))
    return passed[len(starts) :] - passed[: len(starts)]


def ran_side_by_side(device_time_ns: int, busy_time_ns: int | None) -> bool:
    """Whether enough ops ran side by side to make device time differ from time on the clock."""
    return busy_time_ns is not None and 0 < busy_time_ns < (1 - NOTABLE) * device_time_ns
