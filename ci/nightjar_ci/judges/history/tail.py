"""The tail of a reference beyond its highest value, which ranks cannot see.

In: a value and a reference. Out: how much rarer a value that far above the highest is than a new highest. The tail of
the logs is taken to be exponential, so that of the values is a power law.

Source: Weissman, Estimation of parameters and large quantiles based on the k largest observations (1978).
"""

from __future__ import annotations

import numpy as np

from nightjar_ci.judges.convergence.envelope import Array

TOP = 5  # highest values of the reference, whose mean excess over the next one is the scale of its tail


def rarity_beyond(value: Array, reference: Array, floor: float) -> Array:
    """The probability that a value above the whole reference lies as far above it; 1 where it is not above.

    Args:
        value: shape (...).
        reference: shape (..., m), m > `TOP`.
        floor: the least scale of the tail: what is not far above the highest value is no surprise.

    Returns: shape (...).
    """
    ordered = np.partition(reference, (-TOP - 1, -1), axis=-1)
    scale = (ordered[..., -TOP:] - ordered[..., -TOP - 1, None]).mean(axis=-1)
    excess = np.maximum(value - ordered[..., -1], 0.0)
    rarity: Array = np.exp(-excess / np.maximum(np.maximum(scale, floor), 1e-9))
    return rarity
