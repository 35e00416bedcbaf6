"""Envelope of training curves from ten seeds, and the interval of a change of the final value.

In: baseline curves (seeds x steps) and new ones, on the judged scale (usually log loss). Out: an envelope of block
means that a whole unchanged curve leaves with at most a stated probability, and an interval for the change of the final
value. docs/statistics.md derives both.

Source: Hahn and Meeker, Statistical Intervals (1991), 4.8, for the simultaneous prediction interval by Bonferroni's
inequality; it holds whatever the correlation between blocks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from nightjar_ci.judges.array import Array
from nightjar_ci.judges.student_t import t_quantile, t_tail


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """Bounds on block means.

    Attributes:
        firsts: index of the first step of each block; shape (blocks,).
        centre, low, high: mean of the seeds and the bounds; shape (blocks,).
        error, degrees: standard error of a new mean's distance from the centre, shape (blocks,); degrees of freedom.
    """

    firsts: tuple[int, ...]
    centre: Array
    low: Array
    high: Array
    error: Array
    degrees: int

    def p(self, means: Array) -> float:
        """How probably an unchanged program leaves the centre as far, on either side, at any block of any run."""
        far = np.abs(means - self.centre)
        errors = np.divide(far, self.error, out=np.where(far > 0, np.inf, 0.0), where=self.error > 0)
        return min(1.0, 2 * means.size * t_tail(float(errors.max()), self.degrees))


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change of the final value with its two-sided interval and p-value."""

    estimate: float
    low: float
    high: float
    p: float


def block_means(curves: Array, blocks: int) -> tuple[tuple[int, ...], Array]:
    """Means over nearly equal blocks of steps.

    Args:
        curves: shape (runs, steps).
        blocks: number of blocks; fewer if there are fewer steps.

    Returns: the first step index of each block, and the means, shape (runs, blocks).
    """
    steps = curves.shape[1]
    count = min(blocks, steps)
    edges = [round(i * steps / count) for i in range(count + 1)]
    sums = np.add.reduceat(curves, edges[:-1], axis=1)
    return tuple(edges[:-1]), sums / np.diff(edges)


def find_envelope(baseline: Array, *, blocks: int, runs: int, tail: float, least: float) -> Envelope:
    """The bounds that `runs` unchanged curves leave on one side with at most probability `tail`, all blocks together.

    Args:
        baseline: shape (seeds, steps), at least two seeds.
        tail: probability of leaving upwards (the same downwards).
        least: minimum distance of the bounds from the centre, so that rounding does not count as a departure.
    """
    firsts, means = block_means(baseline, blocks)
    seeds = len(means)
    centre = means.mean(axis=0)
    quantile = t_quantile(tail / (means.shape[1] * runs), seeds - 1)
    error = means.std(axis=0, ddof=1) * math.sqrt(1 + 1 / seeds)
    width = np.maximum(quantile * error, least)
    return Envelope(
        firsts=firsts, centre=centre, low=centre - width, high=centre + width, error=error, degrees=seeds - 1
    )


def find_change(new: Array, baseline: Array, pairs: Array, *, tail: float) -> Change:
    """Change of the mean final value, with an interval that misses it with probability 2 x `tail` at most.

    The interval is the intersection of two, each at half of that: the unpaired one (pooled variance of seeds) and, with
    at least two same-seed pairs, the paired one, which is much narrower if little changed.

    Args:
        new: final values of the new runs, shape (m,).
        baseline: final values of the baseline seeds, shape (n,), n + m > 2.
        pairs: differences new - baseline of the same seeds, shape (k,), k may be 0.
    """
    m, n = len(new), len(baseline)
    squares = float(((new - new.mean()) ** 2).sum() + ((baseline - baseline.mean()) ** 2).sum())
    error = math.sqrt(squares / (m + n - 2) * (1 / m + 1 / n))
    shift = float(new.mean() - baseline.mean())
    if len(pairs) < 2:
        half = t_quantile(tail, m + n - 2) * error
        return Change(estimate=shift, low=shift - half, high=shift + half, p=_p(shift, error, m + n - 2))
    half = t_quantile(tail / 2, m + n - 2) * error
    paired, paired_error = float(pairs.mean()), float(pairs.std(ddof=1)) / math.sqrt(len(pairs))
    paired_half = t_quantile(tail / 2, len(pairs) - 1) * paired_error
    low, high = max(shift - half, paired - paired_half), min(shift + half, paired + paired_half)
    if low > high:  # probability 2 x tail at most: trust the pairs
        low, high = paired - paired_half, paired + paired_half
    p = 2 * min(_p(shift, error, m + n - 2), _p(paired, paired_error, len(pairs) - 1))
    if paired_half <= half:
        shift = paired
    return Change(estimate=min(max(shift, low), high), low=low, high=high, p=min(1.0, p))


def _p(shift: float, error: float, degrees: int) -> float:
    if error == 0:
        return float(shift == 0)
    return 2 * t_tail(abs(shift) / error, degrees)
