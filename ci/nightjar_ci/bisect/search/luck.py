"""The luck of a rung: two builds of the same code differ by a little, whichever runs first and however often they run.

In: all pairs of a ladder, and the gap of a change. Out: the probability that the change is there, and the smallest
change that could be told from such luck. Each rung has an offset of its own besides the level of its side, so results
of one rung, however many, are one draw of it; how large offsets are is learned from rungs of the same side. Linear and
Gaussian, with the noise of pairs by the spread of those of the same two rungs, outliers clipped.

Source: a random effect for each group (Searle, Casella and McCulloch, Variance Components, 1992), with its size
integrated over a prior; what no pair of neighbours can tell by itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nightjar_ci.bisect.search.change_shapes import TWO
from nightjar_ci.bisect.search.noise import Array, within_spread

# Sizes of the offsets in logs, and their prior: most ladders have none; compilers and linkers move 1 to 3 %, and a mode
# that sticks to a process or a page layout more.
SIZES = np.array([0.0, 0.005, 0.01, 0.02, 0.03, 0.06, 0.12])
PRIOR = np.array([0.6, 0.1, 0.1, 0.08, 0.06, 0.03, 0.03])
STEP = 0.3  # expected size of a change, in logs
TOLD = 3.3  # offsets by which a change must differ from none to be told at 0.99, with rungs on both sides


@dataclass(frozen=True, slots=True)
class Luck:
    """What the offsets of rungs leave of an answer.

    Attributes:
        mass: probability of each gap that the pairs could tell, 0 and the last of which say that an end is misjudged.
        size: expected standard deviation of an offset, on the scale of the search.
    """

    mass: Array
    size: float

    @property
    def smallest(self) -> float:
        """The smallest change that could be told from luck."""
        return TOLD * math.sqrt(2) * self.size


def weigh_luck(
    differences: Mapping[tuple[int, int], Array],
    tested: NDArray[np.intp],
    gap_prior: Array,
    *,
    unit: float,
    other: int | None,
) -> Luck:
    """The probability of each gap, given that rungs have offsets.

    Args:
        differences: later rung minus earlier one, of the pairs of each two rungs (earlier, later).
        tested: rungs, ascending.
        gap_prior: of one change; shape (rungs + 1,).
        unit: of the differences: 1 for logarithms, else the metric's usual value.
        other: the gap of another change, whose size is unknown too.
    """
    index = {int(rung): at for at, rung in enumerate(tested)}
    kept = [(index[low], index[high], values) for (low, high), values in differences.items() if len(values)]
    spread, _ = within_spread([values for _, _, values in kept])
    design = np.zeros((len(kept), len(tested)))
    for row, (low, high, _) in enumerate(kept):
        design[row, low], design[row, high] = -1.0, 1.0
    means = np.array([_clipped_mean(values, spread) for _, _, values in kept])
    counts = np.array([len(values) for _, _, values in kept], dtype=np.float64)
    gaps = len(tested) + 1
    at = np.arange(len(tested))
    steps = np.stack([design @ (at >= gap) for gap in range(gaps)])
    second = np.zeros_like(steps) if other is None else np.broadcast_to(steps[other], steps.shape)
    log = np.full((2, len(SIZES), gaps), -np.inf)  # of one change, and of the two
    for number, size in enumerate(SIZES * unit):
        luck = size**2 * design @ design.T + np.diag(np.maximum(spread, 1e-6 * unit) ** 2 / counts)
        for gap in range(1, gaps - 1):
            one = luck + (STEP * unit) ** 2 * np.outer(steps[gap], steps[gap])
            log[0, number, gap] = _log_density(means, one)
            if other not in (None, gap):
                two = one + (STEP * unit) ** 2 * np.outer(second[gap], second[gap])
                log[1, number, gap] = _log_density(means, two)
    with np.errstate(divide="ignore"):
        log += np.log(PRIOR)[:, None] + np.log(gap_prior)
        log[1] += math.log(TWO) + (0.0 if other is None else math.log(gap_prior[other]))
    weights = np.exp(log - log.max())
    weights /= weights.sum()
    mass = weights[0 if other is None else 1].sum(axis=0)
    return Luck(mass=np.asarray(mass), size=float(weights.sum(axis=(0, 2)) @ SIZES) * unit)


def _clipped_mean(values: Array, spread: float) -> float:
    middle = float(np.median(values))
    return float(np.mean(np.clip(values, middle - 2 * spread, middle + 2 * spread)))


def _log_density(values: Array, covariance: Array) -> float:
    """Of a normal distribution about zero, up to a constant."""
    return float(-values @ np.linalg.solve(covariance, values) / 2 - np.linalg.slogdet(covariance)[1] / 2)
