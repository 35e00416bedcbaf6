"""The size of noise, which ranks cannot see: its robust standard deviation, and its tail beyond the highest value.

In: values, a reference. Out: their spread; how much rarer a value that far above the highest is than a new highest. The
tail of the logs is assumed exponential, so the tail of the values is a power law.

Source: Weissman, Estimation of parameters and large quantiles based on the k largest observations (1978).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nightjar_ci.judges.array import Array

INNER = 0.8  # share of values nearest to the median that gives the standard deviation
INNER_SD = 1.2816  # standard deviations within which that share of a normal distribution lies
OWN = 40  # nights at which a series' own rate and correlation weigh as much as all series'
LAGS = 5  # lags at which the sizes of distances are compared
TOP = 5  # highest values of the reference, whose mean excess over the next one is the scale of its tail


def rarity_beyond(value: Array, reference: Array, floor: float) -> Array:
    """The probability that a value above the whole reference lies as far above it; 1 if it is not above.

    Args:
        value: shape (...).
        reference: shape (..., m), m > `TOP`.
        floor: the least scale of the tail: a value just above the highest is no surprise.

    Returns: shape (...).
    """
    highest, scale = tail_of(reference)
    excess = np.maximum(value - highest, 0.0)
    rarity: Array = np.exp(-excess / np.maximum(np.maximum(scale, floor), 1e-9))
    return rarity


def tail_of(reference: Array) -> tuple[Array, Array]:
    ordered = np.partition(reference, (-TOP - 1, -1), axis=-1)
    return ordered[..., -1], (ordered[..., -TOP:] - ordered[..., -TOP - 1, None]).mean(axis=-1)


def robust_sd(values: Array) -> Array:
    """Standard deviation along the last axis of values of which a fifth may be outliers."""
    away = np.abs(values - np.median(values, axis=-1, keepdims=True))
    return np.asarray(_quantile(away, INNER) / INNER_SD, dtype=np.float64)


def _quantile(values: Array, share: float) -> Array:
    """`np.quantile` along the last axis, of finite values, several times as fast for short series."""
    last = values.shape[-1] - 1
    low = int(last * share)
    high, weight = min(low + 1, last), last * share - low
    ordered = np.partition(values, (low, high), axis=-1)
    below, above = ordered[..., low], ordered[..., high]
    if weight >= 0.5:
        return np.asarray(above - (above - below) * (1 - weight), dtype=np.float64)  # as NumPy rounds
    return np.asarray(below + (above - below) * weight, dtype=np.float64)


def correlate_neighbours(values: Array) -> float:
    """The correlation of neighbouring values, outliers cut, corrected for its bias (Kendall, 1954)."""
    sd = float(robust_sd(values))
    if sd == 0:
        return 0.0
    rest = np.clip(values - np.median(values), -3 * sd, 3 * sd)
    rest -= rest.mean()
    alike = float((rest[1:] * rest[:-1]).sum() / (rest**2).sum())
    return float(np.clip(alike + (1 + 3 * alike) / len(values), -0.9, 0.9))


def correlate_sizes(values: Array) -> float:
    """The correlation of the sizes of neighbouring distances, summed over `LAGS` nights: noise in spells has one."""
    sd = float(robust_sd(values))
    sizes = np.abs(np.clip(values - np.median(values), -3 * sd, 3 * sd))
    sizes -= sizes.mean()
    total = max(float((sizes**2).sum()), 1e-18)
    return sum(float((sizes[lag:] * sizes[:-lag]).sum()) / total + 1 / len(values) for lag in range(1, LAGS + 1))


def find_runs(held: NDArray[np.bool_]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The first index of each run of nights that are marked, and the one after its last."""
    edges = np.flatnonzero(np.diff(held, prepend=False, append=False))
    return edges[::2], edges[1::2]
