"""The evidence for each shape of a ladder: one change, two changes, or a gradual drift.

In: the grid of log-likelihoods of the tested rungs. Out: the probability of each shape and, for two changes, the
posterior over pairs of gaps. In a pair (a, b), tested rungs before a are good and rungs from b on are bad. Those
between are at a third level, anywhere on the grid except near either of the other two.

A drift goes straight from the good level to the bad one between two places at least half a ladder apart. Its levels are
weighted by the results of the end rungs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from nightjar_ci.bisect.search.noise import Array, Noise

TWO = 0.05  # prior probability of two changes, and
DRIFT = 0.001  # of a drift: a real one is soon beyond doubt, and no number of noisy rungs should look like one
RAMPS = np.array([(0, 1), (0, 0.5), (0.25, 0.75), (0.5, 1), (0, 0.75), (0.25, 1)])  # first and last place of a drift
LEAST_THIRD = 1.25  # standard deviations from either level: a nearer one takes dozens more tests to see
TOPS = 8  # pairs of changes that a forecast looks at
QUANTILES = np.array([0.1, 0.3, 0.5, 0.7, 0.9])


@dataclass(frozen=True, slots=True)
class TwoChanges:
    """The posterior under two changes.

    Attributes:
        firsts, seconds: gaps of either change; shape (pairs,).
        mass: probability of each pair, given two changes; shape (pairs,).
        log_evidence: of two changes, levels and places integrated out.
        tops: the most probable pairs, best first; shape (tops,).
        good, middle, bad: probability of a grid cell for each level and each of these pairs;
            shape (tops, scales, levels).
    """

    firsts: NDArray[np.intp]
    seconds: NDArray[np.intp]
    mass: Array
    log_evidence: float
    tops: NDArray[np.intp]
    good: Array
    middle: Array
    bad: Array

    @property
    def best(self) -> tuple[int, int]:
        return int(self.firsts[self.tops[0]]), int(self.seconds[self.tops[0]])

    def forecast(self, outcomes: Array, rungs: int) -> Array:
        """Probability of each possible result of each tested rung; shape (rungs, outcomes)."""
        table = outcomes.reshape(len(outcomes), -1).T
        sides = np.stack([cells.reshape(len(self.tops), -1) @ table for cells in (self.good, self.middle, self.bad)])
        at = np.arange(rungs)[:, None]
        side = (at >= self.firsts[self.tops]).astype(np.intp) + (at >= self.seconds[self.tops])
        weights = self.mass[self.tops] / self.mass[self.tops].sum()
        return np.asarray(np.einsum("rko,k->ro", sides[side, np.arange(len(self.tops))], weights))

    def marginals(self, gaps: int) -> tuple[Array, Array]:
        """Probability of each gap for the first change, and for the second; shape (gaps,)."""
        first, second = (np.bincount(at, self.mass, minlength=gaps) for at in (self.firsts, self.seconds))
        return first.astype(np.float64), second.astype(np.float64)


@cache
def pairs(rungs: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    first, second = np.triu_indices(rungs, k=1)
    keep = first >= 1
    return first[keep], second[keep]


def two_changes(noise: Noise, log_likelihood: Array, gap_prior: Array) -> TwoChanges:
    """Integrates out three levels; needs three tested rungs.

    Args:
        log_likelihood: of each tested rung; shape (rungs, scales, levels).
        gap_prior: of one change; shape (rungs + 1,).
    """
    firsts, seconds = pairs(len(log_likelihood))
    total = np.zeros((len(log_likelihood) + 1, *log_likelihood.shape[1:]))
    np.cumsum(log_likelihood, axis=0, out=total[1:])
    log_good, log_bad = side_priors(noise)
    good, top_good = scaled(total + log_good)
    bad, top_bad = scaled(total[-1] - total + log_bad)
    middle, top_middle = scaled(total[seconds] - total[firsts] - np.log(len(noise.levels)))
    good_elsewhere, bad_elsewhere = (cells.sum(axis=2, keepdims=True) - near(noise, cells) for cells in (good, bad))
    cells = middle * good_elsewhere[firsts] * bad_elsewhere[seconds]
    each = np.maximum(cells.sum(axis=2), 1e-300)
    log = top_good[firsts] + top_middle + top_bad[seconds] + np.log(each) + noise.log_scale
    with np.errstate(divide="ignore"):
        prior = np.log(gap_prior[firsts]) + np.log(gap_prior[seconds])
    weights = log_sum(log) + prior - log_sum(prior)
    evidence = log_sum(weights).item()
    tops = np.argsort(-weights)[:TOPS]
    share = np.exp(log[tops] - log_sum(log[tops])[:, None])[..., None]
    sides = (good[firsts[tops]], cells[tops], bad[seconds[tops]])
    best = (share * side / np.maximum(side.sum(axis=2, keepdims=True), 1e-300) for side in sides)
    return TwoChanges(firsts, seconds, np.exp(weights - evidence), evidence, tops, *best)


def side_priors(noise: Noise) -> tuple[Array, Array]:
    """Log prior of the good level and of the bad one, as if they were independent; shape (scales or 1, levels)."""
    good, bad = (np.maximum(noise.pairs.sum(axis=axis), 1e-30) for axis in (2, 1))
    return np.log(good), np.log(bad)


def log_sum(log: Array) -> Array:
    """log(sum(exp(log))) over the last axis; ten times as fast as SciPy's on such small arrays."""
    top = log.max(axis=-1, keepdims=True)
    return np.asarray(top[..., 0] + np.log(np.exp(log - top).sum(axis=-1)))


def scaled(log: Array) -> tuple[Array, Array]:
    """exp(log) with the largest of each row of levels at 1, and the log of the divisor."""
    top = log.max(axis=-1, keepdims=True)
    return np.exp(log - top), top[..., 0]


def near(noise: Noise, cells: Array) -> Array:
    """Mass of the cells nearer to each level than a third one may be; the shape of `cells`."""
    levels, least = noise.levels, LEAST_THIRD * noise.scales[:, None]
    total = np.zeros((*cells.shape[:-1], cells.shape[-1] + 1))
    np.cumsum(cells, axis=-1, out=total[..., 1:])
    start = np.searchsorted(levels, levels - least + 1e-12, side="right")[None]
    stop = np.searchsorted(levels, levels + least - 1e-12)[None]
    return np.asarray(np.take_along_axis(total, stop, axis=-1) - np.take_along_axis(total, start, axis=-1))


@dataclass(frozen=True, slots=True)
class Drift:
    """The posterior under a drift.

    Attributes:
        log_evidence: levels integrated out.
        at: level of each rung between the ends, for each way to drift; shape (rungs - 2, scales, ways).
        mass: probability of each scale and way; shape (scales, ways).
    """

    log_evidence: float
    at: NDArray[np.intp]
    mass: Array

    def forecast(self, outcomes: Array) -> Array:
        """Probability of each possible result of each rung between the ends; shape (rungs - 2, outcomes)."""
        each = outcomes[:, np.arange(len(self.mass))[:, None], self.at]  # (outcomes, rungs, scales, ways)
        return np.asarray(np.einsum("orsw,sw->ro", each, self.mass))


def drift(noise: Noise, log_likelihood: Array, places: Array) -> Drift:
    """Integrates out the levels and places of a drift.

    Args:
        log_likelihood: of each tested rung, the ends included; shape (rungs, scales, levels).
        places: of the tested rungs on the ladder, from 0 to 1; shape (rungs,).
    """
    log_good, log_bad = side_priors(noise)
    good, top_good = scaled(log_likelihood[0] + log_good)
    bad, top_bad = scaled(log_likelihood[-1] + log_bad)
    ends = top_good + top_bad + np.log(good.sum(axis=1)) + np.log(bad.sum(axis=1)) + noise.log_scale
    low, high = quantiles(good), quantiles(bad)  # (scales, quantiles), as indices into levels
    share = np.clip((places[1:-1, None] - RAMPS[:, 0]) / (RAMPS[:, 1] - RAMPS[:, 0]), 0, 1)
    share = share[:, None, :, None, None]
    level = (1 - share) * low[:, None, :, None] + share * high[:, None, None, :]  # (rungs, scales, ramps, q, q)
    at = np.rint(level).astype(np.intp).reshape(*level.shape[:2], -1)
    log = np.take_along_axis(log_likelihood[1:-1], at, axis=2).sum(axis=0) + ends[:, None]
    evidence = log_sum(log.ravel()[None]).item()
    return Drift(evidence - math.log(log.shape[1]), at, np.exp(log - evidence))


def quantiles(cells: Array) -> Array:
    total = np.cumsum(cells, axis=1)
    index = np.arange(cells.shape[1])
    return np.stack([np.interp(QUANTILES * row[-1], row, index) for row in total])


@dataclass(frozen=True, slots=True)
class Shape:
    """Probability of one change, of two and of a drift, given that the ends differ."""

    single: float
    two: float
    drift: float
    pair: TwoChanges | None = None
    ramp: Drift | None = None

    @property
    def known(self) -> float:
        return max(self.single, self.two, self.drift)


def judge_shape(noise: Noise, log_likelihood: Array, single: float, gap_prior: Array, places: Array) -> Shape:
    """Compares the shapes.

    Args:
        log_likelihood: of each tested rung, the ends included; shape (rungs, scales, levels).
        gap_prior: of one change; shape (rungs + 1,).
        places: of the tested rungs on the ladder, from 0 to 1.
    """
    if len(log_likelihood) < 3:
        return Shape(1.0, 0.0, 0.0)
    pair = two_changes(noise, log_likelihood, gap_prior)
    ramp = drift(noise, log_likelihood, places)
    evidence = np.array([single, pair.log_evidence, ramp.log_evidence])
    logs = evidence + np.log([1 - TWO - DRIFT, TWO, DRIFT])
    shares = np.exp(logs - log_sum(logs))
    return Shape(float(shares[0]), float(shares[1]), float(shares[2]), pair, ramp)
