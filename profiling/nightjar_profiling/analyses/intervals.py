"""Unions of time intervals, and how much of a span they cover.

In: starts and ends in nanoseconds. Out: merged intervals, and covered time by binary search: n log n for n intervals.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Cover:
    """Disjoint intervals, sorted by time.

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
        return int((self.ends - self.starts).sum())

    def covered(self, starts: Times, ends: Times) -> Times:
        """The covered time of each span."""
        return self._before(ends) - self._before(starts)

    def contains(self, times: Times) -> NDArray[np.bool_]:
        """Whether each moment is covered; an interval contains its start and not its end."""
        last = np.searchsorted(self.starts, times, side="right") - 1
        inside: NDArray[np.bool_] = np.zeros(len(times), bool)
        begun = last >= 0
        inside[begun] = times[begun] < self.ends[last[begun]]
        return inside

    def without(self, other: Cover) -> Cover:
        """The parts of these intervals that the other does not cover.

        >>> left = merge_intervals(np.array([0]), np.array([10])).without(merge_intervals(np.array([4]), np.array([6])))
        >>> left.starts.tolist(), left.ends.tolist()
        ([0, 6], [4, 10])
        """
        edges = np.unique(np.concatenate([self.starts, self.ends, other.starts, other.ends]))
        kept = self.contains(edges[:-1]) & ~other.contains(edges[:-1])
        return merge_intervals(edges[:-1][kept], edges[1:][kept])

    def _before(self, times: Times) -> Times:
        sums = np.concatenate(([0], np.cumsum(self.ends - self.starts)))
        begun = np.searchsorted(self.starts, times, side="right")  # intervals that have begun
        last = np.maximum(begun - 1, 0)
        if not len(self.starts):
            return np.zeros(len(times), np.int64)
        remaining = np.maximum(self.ends[last] - times, 0)  # of the last of them
        covered: Times = np.where(begun > 0, sums[begun] - remaining, 0)
        return covered


def merge_intervals(starts: Times, ends: Times) -> Cover:
    """The union of intervals; adjacent ones are merged."""
    if not len(starts):
        return Cover(np.empty(0, np.int64), np.empty(0, np.int64))
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order].astype(np.int64), np.maximum.accumulate(ends[order].astype(np.int64))
    first = np.concatenate(([True], starts[1:] > ends[:-1]))
    last = np.concatenate((first[1:], [True]))
    return Cover(starts[first], ends[last])
