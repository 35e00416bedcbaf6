"""The check of an answer on its neighbours: pairs of the last good rung and the first bad one, each in random order.

In: differences of pairs between two neighbours, and the change and noise that the search expects. Out: an e-value
against "the two do not differ", and the pairs' evidence for the posterior. Each pair is measured in random order, so
that a difference between two equal rungs is as likely up as down, whatever the machine does between its runs: only
signs are judged, given how large the differences are. The expected noise says how much a sign is worth; if it is wrong,
the check takes longer, and its error stays the same.

Source: Vovk and Wang, E-values: calibration, combination and applications (2021); Ville's inequality: however often
one looks, the e-value of equal rungs exceeds 1 / alpha with a probability of alpha at most.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nightjar_ci.bisect.search.noise import Array, Noise, density

# Gamblers with a share of the stake each, and the highest probability of a sign that each believes in: seven pairs of
# seven are enough for 100, and a few signs that are wrong do not ruin all of them.
GAMBLERS = ((0.81, 0.995), (0.1, 0.85), (0.09, 0.7))
MOST_OF_A_PAIR = 30.0  # by which one pair may change the odds of the posterior


@dataclass(frozen=True, slots=True)
class Expected:
    """The noise that the check expects: half of it the search's, half like the residuals of the search's pairs.

    Attributes:
        residuals: of pairs about their levels; shape (pairs,).
    """

    noise: Noise
    scale: int
    residuals: Array

    def density(self, values: Array) -> Array:
        """Of differences of pairs without a change; shape (values,)."""
        fitted = _density(values, self.noise, self.scale)
        if not len(self.residuals):
            return fitted
        width = self.noise.scales[self.scale]
        z = (values[:, None] - np.concatenate([self.residuals, -self.residuals])) / width
        seen = np.exp(-0.5 * z * z).mean(axis=1) / math.sqrt(2 * math.pi) / width
        return np.asarray((fitted + seen) / 2)


def e_value(differences: Array, changes: Sequence[float], expected: Expected) -> float:
    """How much the signs speak against equal neighbours.

    Args:
        differences: culprit minus the rung before, on the scale of the search; shape (pairs,).
        changes: expected difference, or several that are equally probable.
    """
    if not len(differences) or not any(changes):
        return 1.0
    up, down = (sum(expected.density(sign * differences - change) for change in changes) for sign in (1.0, -1.0))
    believed = up / (up + down)
    each = [share * float(np.prod(2 * np.clip(believed, 1 - most, most))) for share, most in GAMBLERS]
    return sum(each)


def likelihood_ratios(differences: Array, changes: Array, noise: Noise, scale: int) -> Array:
    """How much better each change by itself explains the differences than none; shape (changes,).

    The noise is the one that the search expects.
    """
    ratios = _density(differences[:, None] - changes, noise, scale) / _density(differences, noise, scale)[:, None]
    return np.asarray(np.prod(np.clip(ratios, 1 / MOST_OF_A_PAIR, MOST_OF_A_PAIR), axis=0))


def median_interval(values: Array, doubt: float = 0.05) -> tuple[float, float]:
    """Interval of the median, by signs alone; of 95 % by default.

    >>> median_interval(np.arange(6.0)), median_interval(np.arange(5.0))
    ((0.0, 5.0), (-inf, inf))
    """
    n = len(values)
    rank, tail = 0, 1 / 2**n  # the most values that chance leaves on one side with at most half of the doubt
    while tail <= doubt / 2:
        rank += 1
        tail += math.comb(n, rank) / 2**n
    if rank == 0:
        return -math.inf, math.inf
    ordered = np.sort(values)
    return float(ordered[rank - 1]), float(ordered[n - rank])


def _density(values: Array, noise: Noise, scale: int) -> Array:
    this = slice(scale, scale + 1)
    at = density(values.ravel(), np.zeros(1), noise.scales[this], noise.tails[this], noise.widths[this])
    return np.asarray(np.maximum(at[:, 0, 0], 1e-300).reshape(values.shape))
