"""Noise of a night, pooled over all series: how far, how often and for how many nights in a row it strays.

In: the screened series of a night. Out: the same, without the jumps that the noise of all of them explains. A dozen
nights of one series show neither its rare slow nights nor the correlation of neighbours; the nights of all
series together do.

Nights are compared in standard deviations of their own series. Runs of one and two nights far out tell how often noise
strays and how likely it stays; a run of three or more may be a real change and is not counted, nor is a run that
lasts until tonight. For run lengths of a geometric distribution the ratio of the two counts is its parameter.
docs/statistics.md derives the rates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from nightjar_ci.judges.array import Array
from nightjar_ci.judges.false_discovery import control_discoveries
from nightjar_ci.judges.history.change_points import Change
from nightjar_ci.judges.history.last_nights import NOISES, REFERENCE
from nightjar_ci.judges.history.noise import LAGS, OWN, correlate_neighbours, correlate_sizes, find_runs, robust_sd
from nightjar_ci.judges.history.screening import ScreenedSeries
from nightjar_ci.judges.history.step import find_step

STEPS_PER_NIGHT = 1e-3  # false steps of a night without changes; with changes, their false share
PER_NIGHT = 2e-4  # false jumps of a night by its p; a fifth of the promised rate, since outliers make 1e-3 into 1.25e-3
LEAST_CHANGE = 3  # nights in a row that may be a real change
RUNS = 20  # needed beyond a distance to estimate run lengths
TOP = 20  # nights farthest out, whose mean excess is the scale of the pool's tail
LEAST_SCALE = 0.25  # of that tail
SPELLS = 0.15  # correlation of sizes beyond what neighbours explain; loud spells: 0.37, other noise: 0.05


@dataclass(frozen=True, kw_only=True)
class Pool:
    """The nights of all series.

    Attributes:
        distances: each night's distance above its series' median, in its standard deviations; a NaN between
            two series, and for nights that may be a real change.
        alike: the mean correlation of neighbouring nights.
        restless: the mean correlation of the sizes of neighbouring nights.
    """

    distances: Array
    series: int
    alike: float
    restless: float

    @property
    def in_spells(self) -> bool:
        """Whether loud nights cluster, beyond the correlation of neighbours."""
        explained = sum(max(self.alike, 0.0) ** (2 * lag) for lag in range(1, LAGS + 1))
        return self.restless - explained > SPELLS

    @cached_property
    def _ordered(self) -> Array:
        return np.sort(self.distances[np.isfinite(self.distances)])

    @cached_property
    def _known(self) -> float:
        """The largest distance that `RUNS` runs of one or two nights exceed; the median if there are too few."""
        low, high = len(self._ordered) // 2, len(self._ordered)
        while high - low > 1:
            middle = (low + high) // 2
            if sum(count_runs(self.distances, float(self._ordered[middle]))) >= RUNS:
                low = middle
            else:
                high = middle
        return float(self._ordered[low])

    def run_p(self, distance: float, nights: int, own: int) -> float:
        """The probability that noise takes an unchanged series that far out for that many nights in a row.

        Args:
            distance: in standard deviations of the series.
            own: number of the series' own nights, none of them that far out.
        """
        ones, twos = count_runs(self.distances, min(distance, self._known))
        stays = (twos + 1) / (ones + 2)
        total, farthest = len(self._ordered), float(self._ordered[-1])
        starts = (sum(count_runs(self.distances, distance)) + 1) / (total + 1)
        if distance > farthest:
            top = self._ordered[-TOP - 1 :]
            starts *= math.exp((farthest - distance) / max(float((top - top[0]).mean()), LEAST_SCALE))
        return min(1.0, starts * OWN / (OWN + own) * stays ** (nights - 1))

    def alike_of(self, values: Array) -> float:
        return (OWN * self.alike + len(values) * correlate_neighbours(values)) / (OWN + len(values))


def count_runs(distances: Array, distance: float) -> tuple[int, int]:
    """The number of runs of one night, and of two, beyond a distance; a run at a series' end does not count.

    >>> count_runs(np.array([0, 9, 0, 9, 9, 0, 9, 9, 9, 0, 9, np.nan]), 5.0)
    (1, 1)
    """
    starts, ends = find_runs(distances >= distance)  # a NaN is not
    inside = ends < len(distances)
    inside[inside] = np.isfinite(distances[ends[inside]])
    lengths = (ends - starts)[inside]
    return int((lengths == 1).sum()), int((lengths == 2).sum())


def make_pool(screened: Mapping[str, ScreenedSeries]) -> Pool:
    distances, alike, restless = [], [], []
    for series in screened.values():
        values = series.level[-REFERENCE:]
        scale = max(float(robust_sd(values)), series.segment.jump / NOISES)
        distances.append(np.append(_without_changes((values - np.median(values)) / scale), np.nan))
        alike.append(correlate_neighbours(values))
        restless.append(correlate_sizes(values))
    return Pool(
        distances=np.concatenate(distances),
        series=len(alike),
        alike=float(np.mean(alike)),
        restless=float(np.mean(restless)),
    )


def _without_changes(distances: Array) -> Array:
    """The distances of a series with a NaN for each night of a run that may be a real change."""
    starts, ends = find_runs(distances >= NOISES)
    changes = (ends - starts >= LEAST_CHANGE) | (ends == len(distances))
    kept = distances.copy()
    for start, end in zip(starts[changes], ends[changes], strict=True):
        kept[start:end] = np.nan
    return kept


def weigh_screened(screened: Mapping[str, ScreenedSeries]) -> dict[str, ScreenedSeries]:
    """The series of a night, without the jumps, steps and doubts about one night that their noise explains."""
    judged = {name: series for name, series in screened.items() if not series.screening.moved}
    jumping = [name for name, series in judged.items() if series.screening.jump is not None]
    stepping = [name for name, series in judged.items() if series.screening.step is not None]
    doubtful = [name for name, series in judged.items() if series.screening.stands_out and series.screening.nights < 3]
    weighed = dict(screened)
    if not jumping and not stepping and not doubtful:
        return weighed
    pool = make_pool(judged)
    for name in doubtful:
        weighed[name] = _weigh_doubt(screened[name], pool)
    for name in jumping:
        if not _is_beyond(screened[name], pool):
            weighed[name] = replace(weighed[name], screening=replace(weighed[name].screening, jump=None))
    steps = {name: _find_step_beside(screened[name], pool) for name in stepping}
    p = np.ones(len(screened))
    p[: len(steps)] = [1.0 if step is None else step.p for step in steps.values()]
    adjusted = control_discoveries(p, "bh")
    for (name, step), chance in zip(steps.items(), adjusted, strict=False):
        kept = step if chance <= STEPS_PER_NIGHT else None
        weighed[name] = replace(weighed[name], screening=replace(weighed[name].screening, step=kept))
    return weighed


def _find_step_beside(series: ScreenedSeries, pool: Pool) -> Change | None:
    step = find_step(series.level, series.segment.floor, series.policy.min_nights, pool.alike, pool.in_spells)
    if step is None:
        return None
    return replace(step, index=series.screening.level + step.index)


def _is_beyond(series: ScreenedSeries, pool: Pool) -> bool:
    """Whether noise takes a series as far out as its jump on at most the stated share of nights."""
    assert series.screening.jump is not None
    nights = len(series.segment.values) - series.screening.jump.index
    distance, reference = _distance(series, nights, pool)
    return distance >= NOISES and pool.series * pool.run_p(distance, nights, len(reference)) <= PER_NIGHT


def _weigh_doubt(series: ScreenedSeries, pool: Pool) -> ScreenedSeries:
    """One or two last nights beyond all others are as rare as in all series: history knows only the series' own."""
    nights = series.screening.nights
    distance, reference = _distance(series, nights, pool)
    if series.level[-nights:].min() <= reference.max():
        return series
    p = max(series.screening.p, pool.run_p(distance, nights, len(reference)))
    return replace(series, screening=replace(series.screening, p=p))


def _distance(series: ScreenedSeries, nights: int, pool: Pool) -> tuple[float, Array]:
    """How far the last nights lie above those before, in standard deviations; and those before."""
    level = series.level
    reference = level[:-nights][-REFERENCE:]
    alike = min(max(pool.alike_of(reference), 0.0), 0.9)
    wander = min((1 + alike) / (1 - alike) / len(reference), 0.5)  # variance of the mean, in units of a night's
    scale = max(float(robust_sd(reference)), series.segment.jump / NOISES)
    distance = float(level[-nights:].min() - np.median(reference)) / scale / math.sqrt((1 + wander) / (1 - wander))
    return distance, reference
