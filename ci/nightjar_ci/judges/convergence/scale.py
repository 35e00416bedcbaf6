"""On which scale are curves compared? Losses as logarithms, so that a difference is a ratio; accuracies as they are."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from nightjar_ci.judges.convergence.envelope import Array


def on_scale(values: Sequence[Sequence[float]], scale: str) -> Array | None:
    """Curves on the scale of a policy, shape (runs, steps); None where a logarithm does not exist."""
    curves = np.asarray(values, dtype=np.float64)
    if scale == "linear":
        return curves
    return None if (curves <= 0).any() else np.log(curves)


def as_relative(difference: float, scale: str) -> float:
    """A difference on the policy's scale as an effect: relative where the scale is a logarithm."""
    return math.expm1(difference) if scale == "log" else difference
