"""A drift: a series that becomes worse a little every night, so that no night is its beginning.

In: the values of a segment, higher is worse. Out: its slope and first night. A step is no drift: a line must fit
better than the best step, and leave nothing that neighbours share.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from nightjar_ci.judges.array import Array
from nightjar_ci.judges.history.change_points import LEAST as SIDE
from nightjar_ci.judges.history.noise import correlate_neighbours, robust_sd

NIGHTS = 120  # at most; older ones say little about tonight's slope
LEAST = 40  # nights of a drift
STARTS = 8  # nights at which it may begin are this far apart
T = 6.0  # of the slope; 0.01 % a night in noise of 1 % has 2.5 after 90 nights
ALIKE = 0.4  # correlation of neighbouring residuals, above which a line does not explain the series


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """A lasting slope for the worse, a night, since the night of an index; `line` is its part of each value."""

    index: int
    slope: float
    line: Array

    @property
    def size(self) -> float:
        return float(self.line[-1])


def find_drift(values: Array) -> Drift | None:
    """The drift at the end of a series; None if there is none, or a step explains it."""
    recent = values[-NIGHTS:]
    count = len(recent)
    if count < LEAST:
        return None
    sd = float(robust_sd(recent))
    clipped = np.clip(recent, np.median(recent) - 3 * sd, np.median(recent) + 3 * sd)
    time = np.arange(count, dtype=np.float64)
    fits = [_fit(np.maximum(0.0, time - start), clipped) for start in range(0, count - LEAST + 1, STARTS)]
    number = min(range(len(fits)), key=lambda start: fits[start][1])
    slope, squares = fits[number]
    ramp = np.maximum(0.0, time - number * STARTS)
    error = math.sqrt(max(squares, 1e-24) / (count - 2)) / (float(ramp.std()) * math.sqrt(count))
    alike = correlate_neighbours(clipped - slope * ramp)
    inflated = error * math.sqrt((1 + max(alike, 0.0)) / (1 - max(alike, 0.0)))
    if slope < T * inflated or alike > ALIKE or squares >= _least_squares_of_steps(clipped):
        return None
    line = np.concatenate([np.zeros(len(values) - count), slope * ramp])
    return Drift(index=len(values) - count + number * STARTS, slope=slope, line=line)


def _fit(ramp: Array, values: Array) -> tuple[float, float]:
    centred, rest = ramp - ramp.mean(), values - values.mean()
    slope = float(centred @ rest) / float(centred @ centred)
    return slope, float(((rest - slope * centred) ** 2).sum())


def _least_squares_of_steps(values: Array) -> float:
    count, rest = len(values), values - values.mean()
    left = np.arange(SIDE, count - SIDE + 1)
    sums = np.cumsum(rest)[left - 1]
    return float((rest**2).sum() - (sums**2 * count / (left * (count - left))).max())
