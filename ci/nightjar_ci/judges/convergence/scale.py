"""Scale for comparing curves: logarithmic for losses, so that a difference is a ratio; linear for accuracies."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from nightjar_ci.judges.array import Array


def on_scale(values: Sequence[Sequence[float]], scale: str) -> Array | None:
    """Curves on the scale of a policy, shape (runs, steps); None if a value has no logarithm."""
    curves = np.asarray(values, dtype=np.float64)
    if scale == "linear":
        return curves
    if (curves <= 0).any():
        return None
    return np.log(curves)


def as_relative(difference: float, scale: str) -> float:
    if scale == "log":
        return math.expm1(difference)
    return difference
