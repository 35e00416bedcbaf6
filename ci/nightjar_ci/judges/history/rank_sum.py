"""The exact rank-sum test of a few values against many, and the shift between them.

In: a few recent values and a reference. Out: the probability of ranks that high if both were exchangeable, whatever
their distribution, and the shift between them with its interval.

Source: Mann and Whitney, On a test of whether one of two random variables is stochastically larger than the other
(1947), for the counts; Hodges and Lehmann, Estimates of location based on rank tests (1963), for the shift; Moses
(Walker and Lev, Statistical Inference, 1953, ch. 18) for its interval.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from nightjar_ci.judges.array import Array


@lru_cache(maxsize=4096)
def rank_sum_tail(few: int, many: int) -> Array:
    """P(U >= u) for u = 0 ... few x many, U being the number of pairs (recent, reference) with the recent value above.

    The numbers of arrangements with U = u are the coefficients of the Gaussian binomial, the product over i = 1 ... few
    of (1 - q^(many + i)) / (1 - q^i).

    >>> [round(float(p), 3) for p in rank_sum_tail(1, 3)]
    [1.0, 0.75, 0.5, 0.25]
    """
    counts = np.zeros(few * many + 1)
    counts[0] = 1.0
    for i in range(1, few + 1):
        counts[many + i :] -= counts[: max(0, len(counts) - many - i)].copy()
        for start in range(i):
            counts[start::i] = np.cumsum(counts[start::i])
    tail: Array = np.cumsum(counts)[::-1]  # the counts are symmetric, and exact if small
    tail = tail / tail[0]
    tail.setflags(write=False)
    return tail


def rank_sum_p(recent: Array, reference: Array) -> Array:
    """One-sided p: the probability that recent values of an exchangeable set lie as high above the rest.

    Args:
        recent: shape (..., k), finite.
        reference: shape (..., m), finite; equal values count as not above, so that ties only make p larger.

    Returns: shape (...).
    """
    above = (recent[..., :, None] > reference[..., None, :]).sum(axis=(-1, -2))
    return np.asarray(rank_sum_tail(recent.shape[-1], reference.shape[-1])[above], dtype=np.float64)


def find_shift(after: Array, before: Array, *, miss: float = 0.05) -> tuple[float, float, float]:
    """How much higher `after` lies than `before`: the median of all differences, with its interval.

    Args:
        after, before: at least one finite value each.
        miss: most probability that the interval misses a pure shift, whatever the distribution; infinite if there are
            too few values.

    Returns: the estimate, low and high.
    """
    differences = np.sort((after[:, None] - before[None, :]).ravel())
    cut = int((rank_sum_tail(len(after), len(before)) <= miss / 2).sum()) - 1
    estimate = float(np.median(differences))
    if cut < 0:
        return estimate, -math.inf, math.inf
    return estimate, float(differences[cut]), float(differences[len(differences) - 1 - cut])
