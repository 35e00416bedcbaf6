"""Is tonight worth a second look? Compares the last nights of a series with those before, by ranks alone.

In: the values of the current segment, turned so that higher is worse. Out: a p-value that is valid whatever the noise
looks like (outliers, several modes of a machine), as long as the nights of an unchanged series are exchangeable.
docs/statistics.md derives it. A suspicion is cheap and decides nothing: paired re-runs do.

Source: the rank-sum test (see `ranks`); beyond the highest value of the reference, the exponential tail of its highest
values (Weissman, Estimation of parameters and large quantiles based on the k largest observations, 1978).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nightjar_ci.judges.convergence.envelope import Array
from nightjar_ci.judges.history.rank_test import rank_sum_p

# How the error is shared among the last 1, 2, 3 and 5 nights: a large step shows in one night, a small one in five.
SHARES = {1: 0.4375, 2: 0.1875, 3: 0.1875, 5: 0.1875}
LONGEST = max(SHARES)
TOP = 5  # highest values of the reference, whose mean excess over the next one is the scale of its tail


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspicion:
    """The last nights that stand out most.

    Attributes:
        nights: how many of the last nights; shape (...).
        p: probability of standing out as much by chance, all choices of `nights` together; shape (...).
    """

    nights: Array
    p: Array


def find_suspicion(values: Array, window: int, floor: float = 0.0) -> Suspicion:
    """How surprising the end of a series is.

    Args:
        values: shape (..., N), finite, oldest first, higher is worse; more axes are several series at once; N > 10.
        window: how many nights before the last ones are the reference, at most.
        floor: the least scale of the tail: what is not far above the highest value is no surprise.
    """
    count = values.shape[-1]
    per_choice = []
    for nights, share in SHARES.items():
        recent = values[..., count - nights :]
        reference = values[..., max(0, count - nights - window) : count - nights]
        p = rank_sum_p(recent, reference)
        if nights == 1:
            p = p * _beyond(recent[..., 0], reference, floor)
        per_choice.append(p / share)
    stacked = np.stack(per_choice, axis=-1)
    chosen = stacked.argmin(axis=-1)
    return Suspicion(nights=np.array(tuple(SHARES))[chosen], p=np.minimum(stacked.min(axis=-1), 1.0))


def _beyond(last: Array, reference: Array, floor: float) -> Array:
    """How much rarer than a new maximum a value is that lies far above it; 1 where it is none."""
    ordered = np.partition(reference, (-TOP - 1, -1), axis=-1)
    scale = (ordered[..., -TOP:] - ordered[..., -TOP - 1, None]).mean(axis=-1)
    excess = np.maximum(last - ordered[..., -1], 0.0)
    rarer: Array = np.exp(-excess / np.maximum(np.maximum(scale, floor), 1e-9))
    return rarer
