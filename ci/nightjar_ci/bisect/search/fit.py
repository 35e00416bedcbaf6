"""The fit of one change between two unknown levels to the results so far.

In: values of the tested rungs and the prior over culprits. Out: a `Fit`, from which the search plans and concludes: the
noise grid laid over the results, the probability of each gap, and the distribution of the level on either side.

Culprits between the same two tested rungs have the same likelihood, so the posterior is a mass for each *gap* times the
prior within it. Gap j lies between tested rungs j - 1 and j: if the culprit is in it, tested rungs before j are good
and the others bad. Gap 0 means that all tested rungs are bad, the last gap that all are good. Levels and scale are
integrated over their grid, with the bad level well above the good one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nightjar_ci.bisect.search.change_shapes import Shape, judge_shape, log_sum
from nightjar_ci.bisect.search.luck import add_luck
from nightjar_ci.bisect.search.noise import (
    Array,
    Noise,
    Scale,
    exact_noise,
    metric_log_likelihood,
    pair_noise,
    rate_log_likelihood,
    rate_noise,
)
from nightjar_ci.bisect.search.types import Level, SearchSettings

ELSEWHERE = -60.0  # log-likelihood of another level for the reference of pairs
UNSURPRISING = 0.7  # nats: if each rung fits one of two levels that well, no other shape is considered


@dataclass(frozen=True, slots=True)
class OneChange:
    """The posterior under one change.

    Attributes:
        by_scale: log evidence of the results for each gap and scale, levels integrated out; shape (gaps, scales).
        good, bad: probability of a grid cell for the level of either side, given the gap; shape (gaps, scales, levels).
    """

    by_scale: Array
    good: Array
    bad: Array

    @property
    def log_evidence(self) -> Array:
        return log_sum(self.by_scale)

    def mass(self, prior: Array) -> Array:
        """Probability of each gap and scale, given the prior of gaps; shape (gaps, scales)."""
        with np.errstate(divide="ignore"):
            log = np.log(prior)[:, None] + self.by_scale
        weights = np.exp(log - log.max())
        return np.asarray(weights / weights.sum())


def one_change(noise: Noise, log_likelihood: Array) -> OneChange:
    """Integrates out the levels.

    Args:
        log_likelihood: of all results of each tested rung; shape (rungs, scales, levels).
    """
    total = np.zeros((len(log_likelihood) + 1, *log_likelihood.shape[1:]))
    np.cumsum(log_likelihood, axis=0, out=total[1:])
    good, bad = total, total[-1] - total
    top_good = good.max(axis=2, keepdims=True)
    top_bad = bad.max(axis=2, keepdims=True)
    good = np.exp(good - top_good)
    bad = np.exp(bad - top_bad)
    of_bad = np.matmul(noise.pairs, bad[..., None])[..., 0]  # for each good level, summed over the bad ones
    of_good = np.matmul(noise.pairs.swapaxes(1, 2), good[..., None])[..., 0]
    good *= of_bad
    bad *= of_good
    each = np.maximum(good.sum(axis=2), 1e-300)
    log_scale = (top_good + top_bad)[..., 0] + np.log(each) + noise.log_scale
    top = log_scale.max(axis=1, keepdims=True)
    weights = np.exp(log_scale - top)
    weights /= weights.sum(axis=1, keepdims=True)
    share = (weights / each)[..., None]
    return OneChange(log_scale, good * share, bad * share)


@dataclass(frozen=True, slots=True)
class Fit:
    """The results so far, seen as one change between two levels.

    Attributes:
        tested: rungs with results, ascending; shape (rungs,).
        scale: of the metric; None for exit codes.
        log_likelihood: of each rung's results; shape (rungs, scales, levels).
        change: the posterior given the gap.
        firsts, lasts: culprits of each gap; shape (rungs + 1,). Culprit 0 is "all are bad", N "all are good".
        gap_prior: prior probability of each gap; shape (rungs + 1,).
        mass: probability of each gap; shape (rungs + 1,).
        luck: expected standard deviation of a rung's own offset.
        by_luck: the mass given each size of these offsets; shape (rungs + 1, sizes). None without pairs.
    """

    tested: NDArray[np.intp]
    scale: Scale | None
    noise: Noise
    log_likelihood: Array
    change: OneChange
    firsts: NDArray[np.intp]
    lasts: NDArray[np.intp]
    gap_prior: Array
    mass: Array
    luck: float = 0.0
    by_luck: Array | None = None

    @property
    def best(self) -> int:
        if len(self.mass) > 2:
            return 1 + int(np.argmax(self.mass[1:-1]))
        return 0

    @property
    def end_doubt(self) -> float:
        return float(self.mass[0] + self.mass[-1])

    def at_or_before(self, gaps: NDArray[np.intp], lower: Array) -> Array:
        """Probability that the culprit is at a rung or before, given its gap and the share of the gap up to it."""
        return np.asarray((np.cumsum(self.mass) - self.mass)[gaps] + lower * self.mass[gaps])

    def culprits(self, prior: Array) -> Array:
        """Probability of each culprit 0 to N."""
        posterior = np.array(prior)
        for first, last, mass in zip(self.firsts, self.lasts, self.mass, strict=True):
            inside = posterior[first : last + 1]
            total = inside.sum()
            inside *= mass / total if total > 0 else 0.0
        return posterior

    def shape(self, n_rungs: int) -> Shape:
        """Whether it is one change, two, or a drift; both ends must have been tested."""
        if self.surprise().max() < UNSURPRISING:
            return Shape(1.0, 0.0, 0.0)
        with np.errstate(divide="ignore"):
            log = np.log(self.gap_prior[1:-1] / self.gap_prior[1:-1].sum()) + self.change.log_evidence[1:-1]
        places = self.tested / (n_rungs - 1)
        log_evidence = log_sum(log).item()
        return judge_shape(self.noise, self.log_likelihood, log_evidence, self.gap_prior, places)

    def surprise(self) -> Array:
        """How much better than the good or the bad level another one explains each rung, in nats; shape (rungs,)."""
        good, bad = (cells[self.best] for cells in (self.change.good, self.change.bad))
        scale = int(np.argmax(good.sum(axis=1)))
        table = self.log_likelihood[:, scale]
        fitted = np.maximum(table[:, np.argmax(good[scale])], table[:, np.argmax(bad[scale])])
        return np.asarray(table.max(axis=1) - fitted)

    def expected(self, gap: int) -> tuple[float, Noise, int]:
        """The change, the noise and its most probable scale, if the culprit is in that gap."""
        good, bad = (cells[gap] for cells in (self.change.good, self.change.bad))
        scale = int(np.argmax(good.sum(axis=1)))
        good, bad = (cells[scale] @ self.noise.levels / max(cells[scale].sum(), 1e-300) for cells in (good, bad))
        return float(bad - good), self.noise, scale

    def sides(self, gap: int, shape: Shape) -> tuple[Array, NDArray[np.intp]]:
        """The levels if there is a change in that gap, alone or one of two, and the first rung of each new level."""
        pair = shape.pair
        if pair is not None and gap in pair.best and shape.single < 0.5:
            levels = [cells[0].sum(axis=0) @ self.noise.levels for cells in (pair.good, pair.middle, pair.bad)]
            return np.array(levels), self.tested[list(pair.best)]
        return np.array([0.0, self.expected(gap)[0]]), self.tested[[gap]]

    def doubt(self, gap: int) -> float:
        sides = [cells[gap].sum(axis=0) for cells in (self.change.good, self.change.bad)]
        levels = self.noise.levels
        return float(np.sqrt(sum(np.cov(levels, aweights=side, ddof=0) for side in sides)))

    def levels(self, gap: int) -> tuple[Level, Level]:
        return self.level(self.change.good[gap]), self.level(self.change.bad[gap])

    def level(self, cells: Array) -> Level:
        """Mean and 95 % interval of probabilities of grid cells; shape (scales, levels)."""
        weights = cells.sum(axis=0)
        levels = self.noise.levels
        total = np.cumsum(weights)
        low, high = (float(levels[min(int(np.searchsorted(total, q)), len(levels) - 1)]) for q in (0.025, 0.975))
        mean = float(weights @ levels)
        if self.scale is None:
            return Level(mean=mean, low=low, high=high)
        low, mean, high = (self.scale.undo(value) for value in (low, mean, high))
        return Level(mean=mean, low=min(low, high), high=max(low, high))


def fit(
    values: Mapping[int, Sequence[float]],
    settings: SearchSettings,
    below: Array,
    neighbours: Sequence[Array] = (),
    unit: float = 1.0,
) -> Fit:
    """Lays the grid over the results and integrates out the levels.

    Args:
        values: of each tested rung: 1.0 for bad and 0.0 for good, or the metric; of pairs, the ratio or the difference
            to the reference, which itself has the one that it has to itself.
        below: prior mass of culprits before k; shape (N + 2,).
        neighbours: differences of pairs of two rungs that are not the reference, for each two.
    """
    tested = np.array(sorted(values), dtype=np.intp)
    flat = np.concatenate([np.asarray(values[rung], dtype=np.float64) for rung in sorted(values)])
    counts = [len(values[rung]) for rung in sorted(values)]
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    if settings.metric is None:
        scale = None
        noise = rate_noise(settings.deterministic, settings.failure_rate, settings.seeks_fix)
        failed = np.add.reduceat(flat, starts)
        log_likelihood = rate_log_likelihood(noise, failed, np.array(counts) - failed)
    else:
        scale = Scale(settings.metric, bool(np.all(flat > 0)))
        turned = scale.apply(flat)
        rungs = np.split(turned, starts[1:])
        noise = pair_noise(rungs, neighbours) if settings.paired else exact_noise(rungs)
        log_likelihood = np.add.reduceat(metric_log_likelihood(noise, turned), starts, axis=0)
    if settings.paired:  # all others are compared with the reference: its level is 0, for certain
        log_likelihood[0 if settings.reference == "first" else -1] = np.where(noise.levels == 0, 0.0, ELSEWHERE)
        if len(below) > 2 + 2:  # two rungs alone cannot tell a build's luck from a change
            noise, log_likelihood = add_luck(noise, log_likelihood, unit)
    change = one_change(noise, log_likelihood)
    firsts = np.concatenate([[0], tested + 1])
    lasts = np.concatenate([tested, [len(below) - 2]])
    gap_prior = below[lasts + 1] - below[firsts]
    mass = change.mass(gap_prior).sum(axis=1)
    return Fit(tested, scale, noise, log_likelihood, change, firsts, lasts, gap_prior, mass)
