"""Change points of a series: the nights on which it changed for good, and by how much.

In: the values of one segment (one environment), oldest first. Out: the change points with p, size and interval. They
come from the history alone; nothing is run.

Each split within overlapping stretches of 24 to 192 nights is tested by ranks, so an outlier or a second mode of the
machine weighs no more than any other night. The shortest stretch with a significant change places it. If a straight
line fits better than a step, it is drift and not a change. Nights that resemble their neighbours count less.

Source: Pettitt, A non-parametric approach to the change-point problem (1979), for the rank scan; Kovacs et al., Seeded
binary segmentation (2023), for the stretches; Baranowski, Chen and Fryzlewicz, Narrowest-over-threshold detection
(2019), for the choice among them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nightjar_ci.judges.array import Array
from nightjar_ci.judges.history.rank_sum import find_shift

LEAST = 8  # nights on either side of a change
STRETCHES = (24, 34, 48, 68, 96, 136, 192)  # nights; each 2 ** 0.5 times the one before
NEIGHBOURS = 60  # nights on either side that give the size of a change
Z = 4.4  # chosen with `LINE` on seeded series of all noise models: false alarms against delay (docs/statistics.md)
LINE = 1.13  # ratio of a straight line's residual variance to the step's; below it is drift
TOGETHER = 1000  # segments scanned at once, a few megabytes per stretch length


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A lasting change of the series from `index` on.

    Attributes:
        index: of the first value of the new level.
        p: two-sided, for a split chosen in advance.
        shift, low, high: the new level minus the old one, with its 95 % interval.
    """

    index: int
    p: float
    shift: float
    low: float
    high: float


def find_changes(values: Array, z: float = Z) -> list[Change]:
    return find_all_changes([values], z)[0]


def find_all_changes(segments: Sequence[Array], z: float = Z) -> list[list[Change]]:
    """The change points of many segments, scanned together if of equal length.

    Args:
        segments: each of shape (N,), finite; N may differ.
    """
    alike: dict[int, list[int]] = defaultdict(list)
    for number, values in enumerate(segments):
        alike[len(values)].append(number)
    changes: list[list[Change]] = [[] for _ in segments]
    for numbers in alike.values():
        for start in range(0, len(numbers), TOGETHER):
            together = numbers[start : start + TOGETHER]
            splits = _splits(np.stack([segments[number] for number in together]), z)
            for row, number in enumerate(together):
                if row in splits:
                    changes[number] = _place_changes(segments[number], splits[row])
    return changes


def _place_changes(values: Array, splits: Sequence[tuple[int, int, int, float]]) -> list[Change]:
    """The changes of a segment; the shortest stretch with a change places it."""
    scores: dict[int, float] = {}
    for first, last, index, score in sorted(splits, key=lambda split: (split[1] - split[0], -split[3])):
        if not any(first <= split - 1 and split + 1 <= last for split in scores):
            scores[index] = score
    edges = [0, *sorted(scores), len(values)]
    changes = []
    for before, index, after in zip(edges, edges[1:], edges[2:], strict=False):
        left, right = values[max(before, index - NEIGHBOURS) : index], values[index : min(after, index + NEIGHBOURS)]
        shift, low, high = find_shift(right, left)
        p = math.erfc(scores[index] / math.sqrt(2))
        changes.append(Change(index=index, p=p, shift=shift, low=low, high=high))
    return changes


def _splits(segments: Array, z: float) -> dict[int, list[tuple[int, int, int, float]]]:
    """First and last + 1 of every stretch that shows a change, the index of its best split, and its z, by segment.

    Args:
        segments: shape (S, N).
    """
    splits: dict[int, list[tuple[int, int, int, float]]] = defaultdict(list)
    count = segments.shape[1]
    for length in STRETCHES:
        if length > count and (count < 2 * LEAST or length != STRETCHES[0]):
            break
        length = min(length, count)
        starts = np.unique([*range(0, count - length + 1, length // 4), count - length])
        stretches = np.lib.stride_tricks.sliding_window_view(segments, length, axis=1)[:, starts]
        scores, best = scan(stretches.reshape(-1, length))
        for row in np.flatnonzero(scores >= z):
            segment, start = divmod(int(row), len(starts))
            first = int(starts[start])
            splits[segment].append((first, first + length, first + int(best[row]), float(scores[row])))
    return splits


def scan(stretches: Array) -> tuple[Array, Array]:
    """The best split of each stretch.

    Args:
        stretches: shape (S, L), L >= 2 x `LEAST`.

    Returns: its z (0 if a straight line fits nearly as well as a step) and its index, both of shape (S,).
    """
    rows, length = stretches.shape
    ranks = average_ranks(stretches)
    ranks -= (length - 1) / 2
    variance = (ranks**2).mean(axis=1, keepdims=True)
    left = np.arange(LEAST, length - LEAST + 1)
    sums = np.cumsum(ranks, axis=1)[:, left - 1]
    off = np.abs(sums) / np.sqrt(np.maximum(variance * left * (length - left) / (length - 1), 1e-12))
    best = off.argmax(axis=1)
    split, peak, sums = left[best], off[np.arange(rows), best], sums[np.arange(rows), best]
    after = np.arange(length) >= split[:, None]
    rest = ranks - np.where(after, (-sums / (length - split))[:, None], (sums / split)[:, None])
    time = np.arange(length) - (length - 1) / 2
    squares = (rest**2).sum(axis=1)
    line = (ranks**2).sum(axis=1) - (ranks @ time) ** 2 / (time**2).sum() < LINE * squares
    alike = _likeness(rest)
    return np.where(line, 0.0, peak * np.sqrt((1 - alike) / (1 + alike))), split


def _likeness(rest: Array) -> Array:
    """The correlation of neighbours, from residuals of shape (S, L), with a safety margin."""
    length = rest.shape[1]
    alike: Array = (rest[:, 1:] * rest[:, :-1]).sum(axis=1) / np.maximum((rest**2).sum(axis=1), 1e-12)
    alike += (1 + 3 * alike) / length + 0.5 / math.sqrt(length)  # its bias (Kendall, 1954), plus half its error
    return np.clip(alike, 0.0, 0.9)


def average_ranks(values: Array) -> Array:
    """Ranks from 0 along the last axis; equal values share their mean rank.

    >>> average_ranks(np.array([[3.0, 1.0, 3.0, 2.0]])).tolist()
    [[2.5, 0.0, 2.5, 1.0]]
    """
    order = values.argsort(axis=1, kind="stable")
    ordered = np.take_along_axis(values, order, axis=1)
    places = np.broadcast_to(np.arange(values.shape[1]), values.shape)
    starts = np.ones(values.shape, dtype=bool)
    starts[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    ends = np.ones(values.shape, dtype=bool)
    ends[:, :-1] = starts[:, 1:]
    lowest = np.maximum.accumulate(np.where(starts, places, 0), axis=1)
    highest = np.minimum.accumulate(np.where(ends, places, values.shape[1])[:, ::-1], axis=1)[:, ::-1]
    ranks = np.empty(values.shape)
    np.put_along_axis(ranks, order, (lowest + highest) / 2, axis=1)
    return ranks
