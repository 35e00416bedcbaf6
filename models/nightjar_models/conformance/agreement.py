"""Comparison with a reference: how far two results may lie apart, and why.

In: what a library computed, and the reference in float64. Out: an AssertionError with both, where they disagree.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

# Sums of some ten terms near 1 in float32, in another order than NumPy's: some units in the last place (6e-8 each).
FLOAT32 = 2e-6
# One rounding to bfloat16, which has eight significant bits: at most half a unit in the last place.
BFLOAT16 = 2.0**-8


def draw(*shape: int, seed: int = 0) -> Any:
    """Normal numbers in float32, the same in each run and drawn by NumPy."""
    return np.random.default_rng((seed, *shape)).normal(size=shape).astype(np.float32)


def read(variable: Any) -> Any:
    """The value of a variable of Flax, in float64."""
    return np.asarray(variable[...], np.float64)


def attend(q: Any, k: Any, v: Any, mask: Any = None, bias: Any = 0.0, scale: float | None = None) -> Any:
    """Equation 1 of Vaswani et al. 2017 for (batch, length, heads, depth); fewer heads of keys are repeated."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    k, v = (np.repeat(x, q.shape[2] // x.shape[2], axis=2) for x in (k, v))
    logits = np.einsum("bqhd,bkhd->bhqk", q, k) * (scale or q.shape[-1] ** -0.5) + bias
    if mask is not None:
        logits = np.where(mask, logits, -np.inf)
    return np.einsum("bhqk,bkhd->bqhd", special.softmax(logits, axis=-1), v)


def assert_close(actual: Any, expected: ArrayLike, tolerance: float = FLOAT32) -> None:
    """Compares shapes and values; the tolerance is absolute below 1 and relative above it."""
    actual, reference = np.asarray(actual), np.asarray(expected)
    assert actual.shape == reference.shape, f"shape {actual.shape}, expected {reference.shape}"
    if actual.dtype.kind == "V" or actual.dtype.name == "bfloat16":
        actual = actual.astype(np.float32)
    np.testing.assert_allclose(actual, reference, rtol=tolerance, atol=tolerance)


def assert_same(actual: Any, expected: ArrayLike) -> None:
    """Compares shapes, kinds of dtype and values, exactly: nothing is rounded."""
    actual, reference = np.asarray(actual), np.asarray(expected)
    assert actual.shape == reference.shape, f"shape {actual.shape}, expected {reference.shape}"
    assert actual.dtype.kind == reference.dtype.kind, f"dtype {actual.dtype}, expected {reference.dtype}"
    np.testing.assert_array_equal(actual, reference)
