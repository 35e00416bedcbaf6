"""Parents of nested intervals.

In: intervals of several threads, sorted by thread, then start, then the longest first; or the ids of intervals and of
their parents. Out: the parent of each interval.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from nightjar_profiling.bytes.wire import Positions
from nightjar_profiling.errors import InputError
from nightjar_profiling.readers.annotations.xla_ranges import find_nearest
from nightjar_profiling.readers.projection import NONE, Ints, look_up


def find_parents(thread: Positions, start: Positions, end: Positions) -> Positions:
    """Finds the innermost interval of the same thread that contains each interval; -1 if there is none.

    Args:
        start: start of each interval; sorted by thread, then start, then the latest end first.

    >>> find_parents(np.array([0, 0, 0, 0, 0, 1]), np.array([0, 1, 2, 5, 6, 6]), np.array([9, 5, 5, 5, 9, 9])).tolist()
    [-1, 0, 1, 0, 0, -1]
    """
    parents: list[int] = []
    around: list[tuple[int, int]] = []  # row and end of each open interval
    previous = None
    for row, (current, begin, stop) in enumerate(zip(thread.tolist(), start.tolist(), end.tolist(), strict=True)):
        if current != previous:
            around.clear()
            previous = current
        while around and (around[-1][1] < stop or around[-1][1] <= begin):
            around.pop()
        parents.append(around[-1][0] if around else -1)
        around.append((row, stop))
    return np.array(parents, np.int64)


def find_named_parents(ids: pl.Series, parent_ids: pl.Series, where: str) -> Ints:
    """Finds the row of each interval's parent by its id; -1 if there is none."""
    range_ids = ids.to_numpy()
    ascending = bool((range_ids[1:] > range_ids[:-1]).all())
    if not ascending and (look_up(range_ids, range_ids) != np.arange(len(range_ids))).any():
        raise InputError(f"{where}: range ids are not unique.", "nsys 2024.5 and 2024.6 repeat ids of CUDA graphs")
    parents = look_up(range_ids, parent_ids.fill_null(NONE).to_numpy())
    parents[parent_ids.is_null().to_numpy()] = NONE
    if (parents >= np.arange(len(parents))).any() and (find_nearest(parents, np.zeros(len(parents), bool)) >= 0).any():
        raise InputError(f"{where}: a range is its own ancestor.", "create the archive again")
    return parents
