"""How much of a span of time is covered by others?

In: starts and ends in nanoseconds. Out: merged intervals, and covered time by binary search: n log n for n intervals.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Cover:
    """Disjoint intervals in order of time.

    >>> cover = merge_intervals(np.array([0, 5, 20]), np.array([10, 12, 30]))
    >>> cover.starts.tolist(), cover.ends.tolist(), cover.total_ns
    ([0, 20], [12, 30], 22)
    >>> cover.covered(np.array([8]), np.array([25])).tolist()
    [9]
    """

    starts: Times
    ends: Times

    @property
    def total_ns(self) -> int:
        """Time that is covered."""
        return int((self.ends - self.starts).sum())

    def covered(self, starts: Times, ends: Times) -> Times:
        """For each span, how much of it is covered."""
        return self._before(ends) - self._before(starts)

    def contains(self, times: Times) -> NDArray[np.bool_]:
        """For each moment, whether it is covered; an interval ends before its end."""
        last = np.searchsorted(self.starts, times, side="right") - 1
        inside: NDArray[np.bool_] = np.zeros(len(times), bool)
        begun = last >= 0
        inside[begun] = times[begun] < self.ends[last[begun]]
        return inside

    def without(self, other: Cover) -> Cover:
        """What of this the other does not cover.

        >>> left = merge_intervals(np.array([0]), np.array([10])).without(merge_intervals(np.array([4]), np.array([6])))
        >>> left.starts.tolist(), left.ends.tolist()
        ([0, 6], [4, 10])
        """
        edges = np.unique(np.concatenate([self.starts, self.ends, other.starts, other.ends]))
        kept = self.contains(edges[:-1]) & ~other.contains(edges[:-1])
        return merge_intervals(edges[:-1][kept], edges[1:][kept])

    def _before(self, times: Times) -> Times:
        """Covered time before each moment."""
        sums = np.concatenate(([0], np.cumsum(self.ends - self.starts)))
        number = np.searchsorted(self.starts, times, side="right")  # intervals that have begun
        last = np.maximum(number - 1, 0)
        if not len(self.starts):
            return np.zeros(len(times), np.int64)
        rest = np.maximum(self.ends[last] - times, 0)  # of the last one, what is still to come
        found: Times = np.where(number > 0, sums[number] - rest, 0)
        return found


def merge_intervals(starts: Times, ends: Times) -> Cover:
    """The union of intervals; those that touch become one."""
    if not len(starts):
        return Cover(np.empty(0, np.int64), np.empty(0, np.int64))
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order].astype(np.int64), np.maximum.accumulate(ends[order].astype(np.int64))
    first = np.concatenate(([True], starts[1:] > ends[:-1]))
    last = np.concatenate((first[1:], [True]))
    return Cover(starts[first], ends[last])
