"""Which interval lies directly inside which?

In: intervals of several threads, sorted by thread, start, and the longest first; or their ids and those of their
parents. Out: the parent of each.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from nightjar_profiling.bytes.wire import Positions
from nightjar_profiling.errors import InputError
from nightjar_profiling.readers.annotations.xla_ranges import find_nearest
from nightjar_profiling.readers.projection import NONE, Ints, look_up


def find_parents(thread: Positions, start: Positions, end: Positions) -> Positions:
    """The innermost interval of the same thread that contains each one; -1 where there is none.

    Args:
        thread: of each interval.
        start: when it begins; sorted by thread, start, and of equal starts the latest end first.
        end: when it ends.

    >>> find_parents(np.array([0, 0, 0, 0]), np.array([0, 1, 2, 6]), np.array([9, 5, 3, 8])).tolist()
    [-1, 0, 1, 0]
    """
    parents: list[int] = []
    around: list[tuple[int, int]] = []  # row and end of the intervals that are open
    last = None
    for row, (one, begin, stop) in enumerate(zip(thread.tolist(), start.tolist(), end.tolist(), strict=True)):
        if one != last:
            around.clear()
            last = one
        while around and (around[-1][1] < stop or around[-1][1] <= begin):
            around.pop()
        parents.append(around[-1][0] if around else -1)
        around.append((row, stop))
    return np.array(parents, np.int64)


def find_named_parents(ids: pl.Series, parent_ids: pl.Series, where: str) -> Ints:
    """The row number of the interval with each parent's id; -1 where there is none.

    Raises:
        InputError: an id occurs more than once, or a range lies in itself.
    """
    known = ids.to_numpy()
    rises = bool((known[1:] > known[:-1]).all())
    if not rises and (look_up(known, known) != np.arange(len(known))).any():
        raise InputError(f"{where}: range ids occur more than once.", "nsys 2024.5 and 2024.6 did so with CUDA graphs")
    found = look_up(known, parent_ids.fill_null(NONE).to_numpy())
    found[parent_ids.is_null().to_numpy()] = NONE
    if (found >= np.arange(len(found))).any() and (find_nearest(found, np.zeros(len(found), bool)) >= 0).any():
        raise InputError(f"{where}: a range is its own parent, or that of one around it.", "make the archive again")
    return found
