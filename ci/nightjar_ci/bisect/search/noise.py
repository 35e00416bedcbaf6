"""The noise model: how likely a result is on a good rung and on a bad one, on a grid over the unknown levels.

In: results. Out: their log-likelihood on a grid of `scales` x `levels`, and a prior over good and bad levels. A level
is a failure rate (exit codes: a scale says how alike the rungs of a side are) or a location of the metric (scales:
standard deviation of a run). Bad is always the higher level: metrics with better = higher are negated. If all values
are positive, their logarithms are used.

Source: the density of a metric is a contaminated normal (Huber, Robust Statistics, 1981, 1.1), here with the tail of
Student's t with two degrees of freedom, so that no single value, however wild, decides. The logarithm of the ratio of a
pair may have half of its mass in that tail: if the machine changes its mode between two runs, one of them is slow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# Failure rates of a test: fine near 0 and 1, as each result matters there.
RATES = np.array([0.002, 0.01, 0.025, 0.05, 0.08, 0.12, 0.16, 0.2, 0.25, 0.3, 0.36, 0.43, 0.5])
RATES = np.concatenate([RATES, 1 - RATES[-2::-1]])
# How a test errs, and the prior probability of each way. A rate of errors itself is Beta(1/2, 3/2), which favours few.
NEVER, ALIKE, ON_GOOD, ON_BAD, ANYHOW = 0.05, 0.35, 0.2, 0.2, 0.2
# A rung has a failure rate of its own, about its side's: Beta(m c, (1 - m) c) with these c, and their prior.
ALIKENESS = np.array([1e6, 30.0, 10.0])
ALIKENESS_PRIOR = np.array([0.8, 0.1, 0.1])
FACTOR_OF_A_RATE = 2.0  # by which a known rate may be wrong
LEAST_RATE = 0.07  # smallest change of a failure rate, and
LEAST_SHIFT = 0.75  # of a metric in standard deviations, to look for: less takes hundreds of tests to see
TAIL = 0.04  # share of runs that something disturbed
TAIL_WIDTH = 3.0  # of the disturbed runs, in standard deviations
TAILS_OF_PAIRS = (TAIL, 0.5)  # shares of pairs that something disturbed
LEVELS = 48
SCALES = 6
OUTCOMES = 20


@dataclass(frozen=True, slots=True)
class Noise:
    """A grid of the possible levels of a side.

    Attributes:
        levels: shape (levels,), ascending.
        scales: shape (scales,).
        pairs: prior probability of a good and a bad level; shape (scales or 1, levels, levels).
        log_scale: log prior of the scale; shape (scales,).
        outcomes: probability of each possible result, for planning; shape (outcomes, scales, levels).
        tails: share of disturbed runs; shape (scales,).
        widths: scale of disturbed runs, in the unit of levels; shape (scales,).
        luck: standard deviation of a rung's own offset from its side's level; shape (scales,).
    """

    levels: Array
    scales: Array
    pairs: Array
    log_scale: Array
    outcomes: Array
    tails: Array
    widths: Array
    luck: Array


def rate_noise(deterministic: bool, failure_rate: float | None = None, seeks_fix: bool = False) -> Noise:
    if deterministic:
        levels, scales, log_scale = np.array([1e-9, 1 - 1e-9]), ALIKENESS[:1], np.zeros(1)
        pairs = np.array([[0.0, 1.0], [0.0, 0.0]])
    else:
        levels, scales, log_scale = RATES, ALIKENESS, np.log(ALIKENESS_PRIOR)
        pairs = rate_pairs(levels, failure_rate)
        if seeks_fix:  # the bad end is the first, and what fails there is called good
            pairs = pairs[::-1, ::-1].T
    outcomes = np.repeat(np.stack([1 - levels, levels])[:, None, :], len(scales), axis=1)
    none = np.zeros(len(scales))
    return Noise(levels, scales, pairs[None], log_scale, outcomes, none, none + 1, none)


def error_rate_cdf(rates: Array) -> Array:
    """The cumulative distribution of Beta(1/2, 3/2), whose density is 2/pi sqrt((1 - x) / x)."""
    return np.asarray(2 / math.pi * (np.arcsin(np.sqrt(rates)) + np.sqrt(rates * (1 - rates))))


def rate_pairs(levels: Array, failure_rate: float | None) -> Array:
    """Prior probability of a failure rate on good rungs and one on bad rungs; shape (levels, levels)."""
    edges = np.concatenate([[0.0], (levels[1:] + levels[:-1]) / 2, [1.0]])
    errors = np.diff(error_rate_cdf(edges))
    none = np.zeros_like(levels)
    none[0] = 1.0
    good = np.stack([none, errors, none, errors])
    passes = (errors + np.diff(edges)) / 2 if failure_rate is None else failing_now_and_then(levels, failure_rate)[::-1]
    bad = np.stack([none, none, passes, passes])[:, ::-1]
    pairs = np.einsum("w,wg,wb->gb", [NEVER, ON_GOOD, ON_BAD, ANYHOW], good, bad) + ALIKE * np.diag(errors)[:, ::-1]
    pairs *= levels[None, :] - levels[:, None] >= LEAST_RATE - 1e-12
    return np.asarray(pairs / pairs.sum())


def failing_now_and_then(levels: Array, failure_rate: float) -> Array:
    """Prior of the bad side's failure rate if its user knows it about."""
    near = np.exp(-0.5 * (np.log(levels / failure_rate) / math.log(FACTOR_OF_A_RATE)) ** 2)
    return np.asarray(near / near.sum())


def rate_log_likelihood(noise: Noise, failed: Array, passed: Array) -> Array:
    """Of each rung's tests, of which some failed: beta-binomial; shape (rungs, scales, levels).

    Source: Skellam, A probability distribution derived from the binomial distribution (1948).
    """
    fails, passes = noise.levels * noise.scales[:, None], (1 - noise.levels) * noise.scales[:, None]
    return log_rising(fails, failed) + log_rising(passes, passed) - log_rising(fails + passes, failed + passed)


def log_rising(start: Array, counts: Array) -> Array:
    """The logarithm of `start (start + 1) ...` with as many factors as each count; shape (counts, *start).

    >>> log_rising(np.array([2.0]), np.array([0, 3])).round(6).tolist()  # log 24
    [[0.0], [3.178054]]
    """
    factors = start + np.arange(int(counts.max(initial=0))).reshape(-1, *[1] * start.ndim)
    sums = np.cumsum(np.log(factors), axis=0)
    return np.asarray(np.concatenate([np.zeros((1, *start.shape)), sums])[counts.astype(int)])


def density(values: Array, levels: Array, scales: Array, tails: Array, widths: Array) -> Array:
    """The metric's density; shape (values, scales, levels)."""
    distance = values[:, None, None] - levels
    z = distance / scales[:, None]
    core = np.exp(-0.5 * z * z) / math.sqrt(2 * math.pi) / scales[:, None]
    z = distance / widths[:, None]
    tail = (1 + z * z / 2) ** -1.5 / (2 * math.sqrt(2)) / widths[:, None]
    return np.asarray((1 - tails[:, None]) * core + tails[:, None] * tail)


def metric_log_likelihood(noise: Noise, values: Array) -> Array:
    return np.asarray(np.log(density(values, noise.levels, noise.scales, noise.tails, noise.widths)))


@dataclass(frozen=True, slots=True)
class Scale:
    """The map from a metric to a number whose increase is worse."""

    better: Literal["lower", "higher"]
    log: bool

    def apply(self, values: Array) -> Array:
        if self.log:
            values = np.log(values)
        if self.better == "higher":
            values = -values
        return np.asarray(values)

    def undo(self, value: float) -> float:
        if self.better == "higher":
            value = -value
        if self.log:
            value = math.exp(value)
        return value


def exact_noise(rungs: Sequence[Array]) -> Noise:
    """The grid for a metric that never varies, laid over its values so far; the scale is the grid's resolution.

    Args:
        rungs: values (of `Scale.apply`) of each tested rung, the first of the good end, the last of the bad one.
    """
    levels, _ = _levels(rungs, 0.0)
    scales = levels[1:2] - levels[:1]
    return _grid(levels, scales, np.full(1, TAIL), TAIL_WIDTH * scales)


def pair_noise(rungs: Sequence[Array], neighbours: Sequence[Array] = ()) -> Noise:
    """The grid for differences (of `Scale.apply`) to the reference, whose own level is 0.

    Args:
        rungs: differences of each tested rung, the first end's first; the reference has a single 0.
        neighbours: differences of pairs of two other rungs, for each two: they tell of the noise only.
    """
    repeated = [values for values in (*rungs, *neighbours) if len(values) > 1]
    wide, freedom = within_spread(repeated)
    away = np.concatenate([np.abs(values - np.median(values)) for values in repeated]) if repeated else np.zeros(1)
    core = min(wide, float(np.quantile(away, 0.3)) / 0.385) if freedom > 4 else wide  # half may be disturbed
    levels, gap = _levels(rungs, core)
    levels -= levels[np.argmin(np.abs(levels))]
    step = levels[1] - levels[0]
    widest = max(3 * wide, 0.35 * gap if freedom < 3 else 0.0, 2 * step)
    scales = np.concatenate([spread_grid(core, freedom, 0.5 * step, widest) for _ in TAILS_OF_PAIRS])
    tails = np.repeat(TAILS_OF_PAIRS, SCALES)
    far = float(np.quantile(away, 0.9)) if freedom > 4 else 0.0
    return _grid(levels, scales, tails, np.maximum(TAIL_WIDTH * scales, np.where(tails > TAIL, far, 0.0)))


def _levels(rungs: Sequence[Array], spread: float) -> tuple[Array, float]:
    medians = np.array([np.median(values) for values in rungs])
    good, bad = medians[0], medians[-1]
    gap = abs(bad - good)
    tiny = 1e-9 * max(abs(good), abs(bad)) + 1e-30
    reach = max(gap, 4 * spread, tiny)
    known = [good, bad, *(np.median(values) for values in rungs if len(values) > 2)]  # one wild run is not a level
    low = min(max(medians.min(), min(good, bad) - reach), *known) - 3 * spread - 0.1 * reach
    high = max(min(medians.max(), max(good, bad) + reach), *known) + 3 * spread + 0.1 * reach
    return np.linspace(low, high, LEVELS), float(gap)


def _grid(levels: Array, scales: Array, tails: Array, widths: Array) -> Noise:
    pairs = (levels[None, :] - levels[:, None] >= LEAST_SHIFT * scales[:, None, None]).astype(np.float64)
    pairs /= LEVELS**2  # not their sum: a change needs room between the levels
    centres = np.linspace(levels[0] - 2 * scales.max(), levels[-1] + 2 * scales.max(), OUTCOMES)
    broad = np.maximum(scales, (centres[1] - centres[0]) / 2)
    outcomes = density(centres, levels, broad, tails, np.maximum(widths, TAIL_WIDTH * broad))
    outcomes /= outcomes.sum(axis=0)
    log_scale = np.full(len(scales), -math.log(len(scales)))
    return Noise(levels, scales, pairs, log_scale, outcomes, tails, widths, 0 * scales)


def spread_grid(spread: float, freedom: int, least: float, widest: float) -> Array:
    """Standard deviations that a run may have: close about the observed one given many values, and one far above it."""
    doubt = min(math.log(3), 3 / math.sqrt(2 * max(freedom, 1)))
    low = max(least, spread * math.exp(-doubt))
    high = min(max(low, spread * math.exp(doubt)), widest)
    if high > 0.7 * widest:
        return np.geomspace(low, widest, SCALES)
    return np.concatenate([np.geomspace(low, high, SCALES - 1), [widest]])


def within_spread(rungs: Sequence[Array]) -> tuple[float, int]:
    """Robust standard deviation of repeated runs of one rung, and its degrees of freedom."""
    repeated = [values - np.median(values) for values in rungs if len(values) > 1]
    if not repeated:
        return 0.0, 0
    residuals = np.concatenate(repeated)
    freedom = len(residuals) - len(repeated)
    cut = 3 * 1.4826 * np.median(np.abs(residuals)) * math.sqrt(len(residuals) / freedom)
    if cut > 0:
        residuals = np.clip(residuals, -cut, cut)
    return math.sqrt(float(np.sum(residuals**2)) / freedom), freedom
