"""Layers in plain NumPy, written from their papers: the reference that the models' layers are compared with.

In: arrays, and parameters as Flax names them (`kernel`, `bias`, `scale`), in float64. Out: arrays. Nothing here calls
JAX. Every formula also holds for complex numbers, so that a derivative is the imaginary part of one evaluation.

Dimensions: B batch, T positions, S positions that are looked at, D width, H heads, G heads of keys and values, K width
of a head, X x Y pixels, I channels in, O channels out.

Source: Vaswani et al. 2017 (attention, equation 1); Ainslie et al. 2023 (grouped heads); Su et al. 2021 (rotary
positions, equation 34, in the order of Llama's published weights); Raffel et al. 2020 (relative positions); Ba et al.
2016, Zhang and Sennrich 2019, Wu and He 2018 (norms); Hendrycks and Gimpel 2016 (GELU); Shazeer 2020 (GLU variants).
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[Any]  # float64, or complex128 where a derivative is taken
Weights = Any  # a tree of dictionaries with arrays as leaves
EPSILON = 1e-5


def sigmoid(x: Numbers) -> Numbers:
    return np.asarray(1 / (1 + np.exp(-x)))


def silu(x: Numbers) -> Numbers:
    return x * sigmoid(x)


def gelu(x: Numbers) -> Numbers:
    """Hendrycks and Gimpel's approximation by a hyperbolic tangent."""
    return np.asarray(0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))


def softmax(x: Numbers) -> Numbers:
    """Over the last axis; the shift is real, so that it has no derivative."""
    powers = np.exp(x - x.real.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def cross_entropy(logits: Numbers, labels: NDArray[np.integer[Any]]) -> Numbers:
    chances = np.take_along_axis(softmax(logits), labels[..., None], axis=-1)
    return np.asarray(-np.log(chances[..., 0]))


def linear(weights: Weights, x: Numbers) -> Numbers:
    """A map of the last axis; the kernel's axes behind its first are those of the result."""
    product = np.tensordot(x, weights["kernel"], axes=1)
    return product + weights["bias"] if "bias" in weights else product


def layer_norm(weights: Weights, x: Numbers) -> Numbers:
    centred = x - x.mean(axis=-1, keepdims=True)
    return np.asarray(
        centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + EPSILON) * weights["scale"] + weights["bias"]
    )


def rms_norm(weights: Weights, x: Numbers) -> Numbers:
    return np.asarray(x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + EPSILON) * weights["scale"])


def group_norm(weights: Weights, x: Numbers, size: int) -> Numbers:
    """[B, X, Y, I]: zero mean and unit variance over the pixels and each `size` neighbouring channels."""
    result = np.empty_like(x)
    for start in range(0, x.shape[-1], size):
        group = x[..., start : start + size]
        centred = group - group.mean(axis=(1, 2, 3), keepdims=True)
        variance = (centred**2).mean(axis=(1, 2, 3), keepdims=True)
        result[..., start : start + size] = centred / np.sqrt(variance + EPSILON)
    return np.asarray(result * weights["scale"] + weights["bias"])


def convolve(weights: Weights, x: Numbers) -> Numbers:
    """[B, X, Y, I] to [B, X, Y, O]: each pixel from those around it; beyond the border there are zeros."""
    kernel = weights["kernel"]
    margin = kernel.shape[0] // 2
    padded = np.pad(x, ((0, 0), (margin, margin), (margin, margin), (0, 0)))
    result = np.zeros((*x.shape[:3], kernel.shape[-1]), x.dtype)
    for row, column in np.ndindex(kernel.shape[:2]):
        result += padded[:, row : row + x.shape[1], column : column + x.shape[2]] @ kernel[row, column]
    return np.asarray(result + weights["bias"])


def attend(
    query: Numbers,
    key: Numbers,
    value: Numbers,
    *,
    scale: float,
    seen: NDArray[np.bool_] | None = None,
    bias: Numbers | None = None,
) -> Numbers:
    """[B, T, H, K] from keys and values [B, S, G, K], head by head; H / G neighbouring heads share one of the keys."""
    mixed = np.empty(query.shape, np.result_type(query, key, value))
    shared = query.shape[2] // key.shape[2]
    for example, head in np.ndindex(query.shape[0], query.shape[2]):
        scores = query[example, :, head] @ key[example, :, head // shared].T * scale
        if bias is not None:
            scores = scores + bias[head]
        if seen is not None:
            scores = np.where(seen[example], scores, -np.inf)
        mixed[example, :, head] = softmax(scores) @ value[example, :, head // shared]
    return mixed


def look_back(examples: int, length: int) -> NDArray[np.bool_]:
    """[B, T, T]: each position sees itself and what is before it."""
    position = np.arange(length)
    return np.broadcast_to(position[None, :] <= position[:, None], (examples, length, length))


def self_attention(
    weights: Weights, x: Numbers, *, causal: bool, turn: Callable[[Numbers], Numbers] = lambda x: x
) -> Numbers:
    """Attention of a stream to itself, with scores divided by the root of the heads' width."""
    query, key, value = (linear(weights[name], x) for name in ("query", "key", "value"))
    seen = look_back(*x.shape[:2]) if causal else None
    mixed = attend(turn(query), turn(key), value, scale=query.shape[-1] ** -0.5, seen=seen)
    return join_heads(weights["out"], mixed)


def join_heads(weights: Weights, mixed: Numbers) -> Numbers:
    """[B, T, H, K] to [B, T, D]."""
    kernel = weights["kernel"].reshape(-1, weights["kernel"].shape[-1])
    return linear({**weights, "kernel": kernel}, mixed.reshape(*mixed.shape[:2], -1))


def rotate(x: Numbers, base: float) -> Numbers:
    """Rotary positions: pair (n, n + K/2) at position t, taken as a complex number, turned by t * base^(-2n/K)."""
    turned, half = np.empty_like(x), x.shape[-1] // 2
    for position, pair in np.ndindex(x.shape[1], half):
        angle = position * base ** (-2 * pair / x.shape[-1])
        first, second = x[:, position, :, pair], x[:, position, :, pair + half]
        turned[:, position, :, pair] = first * math.cos(angle) - second * math.sin(angle)
        turned[:, position, :, pair + half] = first * math.sin(angle) + second * math.cos(angle)
    return turned


def bucket(distance: int, buckets: int, farthest: int, *, both_ways: bool) -> int:
    """T5's row of a distance, in integers: logarithmic step k starts where (a/e)^m >= (f/e)^k.

    a is how far away, e the first distance that shares a row, m the number of shared rows, f the farthest distance.
    """
    row, away = 0, max(-distance, 0)
    if both_ways:
        buckets //= 2
        row, away = (buckets if distance > 0 else 0), abs(distance)
    exact = buckets // 2
    if away < exact:
        return row + away
    shared = buckets - exact
    steps = [k for k in range(shared) if away**shared * exact**k >= farthest**k * exact**shared]
    return row + exact + max(steps)
