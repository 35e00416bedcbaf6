"""A step of the last nights: they lie above the nights before by more than any noise explains.

In: the values of the current level, turned so that higher is worse. Out: its first night, size and probability. A jump
is far beyond the noise; a step may be as small as the noise of one night, if enough nights show it.

Three tests, and all have to agree. The rank-sum test holds for any noise whose nights do not depend on their order. A
t-test whose error grows with the correlation of neighbours covers correlated nights. A t-test by the spread of the last
nights alone covers a machine that became loud. A slow drift is removed first. docs/statistics.md gives the rates on
every kind of noise.
"""

from __future__ import annotations

import math

import numpy as np

from nightjar_ci.judges.array import Array
from nightjar_ci.judges.history.change_points import Change
from nightjar_ci.judges.history.noise import LAGS, OWN, correlate_neighbours, correlate_sizes, robust_sd
from nightjar_ci.judges.history.rank_sum import find_shift, rank_sum_p
from nightjar_ci.judges.student_t import t_tail

# Chosen on other seeds than the rates in docs/statistics.md, false steps against power.
NIGHTS = (4, 5, 6, 8, 10, 13, 17)  # possible numbers of nights; a longer one is a lasting change
REFERENCE = 60  # nights before that give the level
NOISE = 180  # nights before that give the size of the noise
P = 5e-5  # one false step in 20,000 nights of a series; among other series the night decides (see `pool`)
CAUTION = 0.7  # standard errors that are added to the correlation of neighbours
AGREE = 3e-3  # p of the last nights by their own spread
LOUDER = 1.3  # times the earlier spread: then the noise has changed, and
AGREE_LOUDER = 2e-5  # the nights must agree this well
TRIM = 6  # one in six of the last nights is left out at either end
MOST_ALIKE = 0.9
AGREE_IN_SPELLS = 1e-4  # and this well if the night's series have loud spells: the first nights of one may agree
RESTLESS = 2.0  # standard errors of the correlation of sizes that show noise in spells
SPELLS = 12.0  # degrees of freedom that are left then


def find_step(
    values: Array, floor: float, min_nights: int, alike: float | None = None, in_spells: bool = False
) -> Change | None:
    """The step at the end of a series, for the worse; None if there is none.

    Args:
        values: shape (N,), finite, oldest first, higher is worse.
        alike: the correlation of neighbouring nights over all the night's series, weighted as `OWN` nights of this one;
            None: from this series alone.
        in_spells: whether the noise of the night's series comes in loud spells.
    """
    best: Change | None = None
    for nights in NIGHTS:
        if len(values) - nights < min_nights:
            break
        level = _without_drift(values[-nights - NOISE :], nights)
        p = len(NIGHTS) * _step_p(level, nights, floor, alike, in_spells)
        if p <= (P if best is None else best.p):
            shift, low, high = find_shift(level[-nights:], level[:-nights][-REFERENCE:])
            best = Change(index=len(values) - nights, p=p, shift=shift, low=low, high=high)
    return best


def _without_drift(values: Array, nights: int) -> Array:
    before = values[:-nights]
    time = np.arange(len(before)) - (len(before) - 1) / 2
    rest = _cut(before)
    slope = max(0.0, float(rest @ time) / float(time @ time))
    drifted: Array = values - slope * np.arange(len(values))
    return drifted


def _cut(values: Array) -> Array:
    sd = float(robust_sd(values))
    return np.asarray(np.clip(values - np.median(values), -3 * sd, 3 * sd), dtype=np.float64)


def _step_p(level: Array, nights: int, floor: float, alike: float | None, in_spells: bool) -> float:
    """The larger p of the rank-sum test and the first t-test; 1 if a test fails."""
    recent, noise = level[-nights:], level[:-nights]
    before = noise[-REFERENCE:]
    trimmed = max(1, nights // TRIM) if nights > NIGHTS[0] else 0
    ordered, kept = np.sort(recent), nights - 2 * trimmed
    fifth = len(before) // 5
    usual = np.sort(before)[fifth : len(before) - fifth].mean()
    size = float(ordered[trimmed : nights - trimmed].mean()) - float(usual)
    if size <= floor:
        return 1.0
    sd = max(min(float(robust_sd(noise)), float(noise.std())), 1e-9)
    if size <= sd / math.sqrt(nights):
        return 1.0
    correlation = _correlation(noise, alike)
    error = sd * math.sqrt(_inflate(correlation, nights) / nights + _inflate(correlation, len(before)) / len(before))
    degrees = max(3.0, len(noise) * (1 - correlation) / (1 + correlation))
    if correlate_sizes(noise) > RESTLESS * math.sqrt(LAGS / len(noise)):  # loud nights follow each other
        error, degrees = error * _loudest(noise, nights) / sd, min(degrees, SPELLS)
    p = t_tail(size / error, degrees)
    if p > P:
        return 1.0
    winsorised = np.clip(recent, ordered[trimmed], ordered[nights - 1 - trimmed])
    squares = float(((winsorised - winsorised.mean()) ** 2).sum())
    louder = math.sqrt(squares / (kept - 1)) > LOUDER * sd
    own_error = math.sqrt(squares / (kept * (kept - 1)) + sd**2 / len(before))
    if t_tail(size / own_error, kept - 1) > _agreement(louder, in_spells):
        return 1.0
    return max(p, float(rank_sum_p(recent, before)))


def _agreement(louder: bool, in_spells: bool) -> float:
    """The largest p of the last nights by their own spread."""
    if louder:
        return AGREE_LOUDER
    return AGREE_IN_SPELLS if in_spells else AGREE


def _loudest(noise: Array, nights: int) -> float:
    """The standard deviation, around the median, of the loudest stretch of as many nights."""
    squares = np.convolve(_cut(noise) ** 2, np.full(nights, 1 / nights), mode="valid")
    return max(math.sqrt(float(squares.max())), float(robust_sd(noise)))


def _correlation(noise: Array, alike: float | None) -> float:
    """The correlation of neighbouring nights, with a safety margin."""
    count, own = len(noise), correlate_neighbours(noise)
    if alike is None:
        return min(max(own + CAUTION / math.sqrt(count), 0.0), MOST_ALIKE)
    shared = (OWN * alike + count * own) / (OWN + count) + CAUTION * math.sqrt(count) / (OWN + count)
    return min(max(shared, 0.0), MOST_ALIKE)


def _inflate(correlation: float, count: int) -> float:
    lags = np.arange(1, count)
    return 1.0 + 2.0 * float(((1 - lags / count) * correlation**lags).sum())
