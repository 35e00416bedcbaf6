"""Layers that several models share: norms, attention, feed-forward layers and the cross entropy.

In: activations and parameters, in the type that is computed in (`Compute.dtype`). Out: activations of the same type;
means, variances, softmax and loss are always computed in float32.

Dimensions: B batch, T positions, S positions that are looked at, D model width, H heads, G heads of keys and values,
K width of a head, F feed-forward width, V classes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

from nightjar_models.data.pipeline import BRIGHTEST
from nightjar_models.kernels import rms_norm as ffi_rms_norm
from nightjar_models.kernels.fused_attention import CUDNN, choose, describe_call, fall_back
from nightjar_models.parallel.ring import ring_attention
from nightjar_models.parallel.sharding import active_mesh, is_for_cpu

EPSILON = 1e-5  # added to a variance
SMALL_PRODUCT = 24**3  # T * S * K: the largest that was faster with `_flip`, those of t5_tiny
MASKED = -1e30  # finite, so that a row in which nothing may be seen has no NaN


def brightness(images: Float[Array, "*B"] | Int[Array, "*B"]) -> Float[Array, "*B"]:
    """Pixels in [-1, 1] of images in bytes; those that are such numbers already stay as they are.

    Bytes with a sign are those of photographs, less 128; digits were scanned with 16 steps.

    >>> brightness(jnp.array([0, 8, 16], jnp.uint8)).tolist()
    [-1.0, 0.0, 1.0]
    >>> brightness(jnp.array([-128, 127], jnp.int8)).tolist()
    [-1.0, 1.0]
    """
    if images.dtype == jnp.int8:
        return (images.astype(jnp.float32) + 0.5) / 127.5
    return images.astype(jnp.float32) / (BRIGHTEST / 2) - 1 if images.dtype == jnp.uint8 else images


def look_up(table: Float[Array, "V D"], index: Int[Array, "*B"]) -> Float[Array, "*B D"]:
    """Rows of a table. The gradient of a row is a sum over all places where it is used, always in float32.

    In bf16 most of a sum of a thousand is rounded away, and a GPU adds bf16 to memory slowly: 14.6 ms on an H100 for
    65,536 rows of 768 that are added to 64 rows, as those of bytes of a text might be, where float32 takes 0.4 ms.
    """
    if table.dtype == jnp.float32:
        return table[index]
    rows: Array = _look_up(len(table), table, index)
    return rows


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _look_up(count: int, table: Array, index: Array) -> Array:
    """`look_up` of a table of `count` rows of another type than float32."""
    return table[index]


def _sum_rows(count: int, index: Array, gradient: Array) -> tuple[Array, None]:
    total = jnp.zeros((count, gradient.shape[-1]), jnp.float32).at[index].add(gradient.astype(jnp.float32))
    return total.astype(gradient.dtype), None


_look_up.defvjp(lambda count, table, index: (table[index], index), _sum_rows)


def multiply(x: Float[Array, "*B D"], w: Float[Array, "D F"]) -> Float[Array, "*B F"]:
    """The product of each row of x with a matrix; on a single CPU all rows of x are one matrix too.

    Where rows lie along two dimensions, XLA:CPU copies and then multiplies slowly for the gradient of w (jaxlib 0.10.2:
    7.7 ms of CPU and not 2.9 ms for 32 x 64 rows of 96 numbers and of 384). A mesh may split both: there they stay.
    """
    if x.ndim == 2 or not is_for_one_cpu():
        return x @ w
    return (x.reshape(-1, x.shape[-1]) @ w).reshape(*x.shape[:-1], w.shape[-1])


def is_for_one_cpu() -> bool:
    """Whether a single CPU computes the program that is being traced."""
    mesh = active_mesh()
    return is_for_cpu() and (mesh is None or mesh.size == 1)


def layer_norm(x: Float[Array, "B T D"], scale: Float[Array, " D"]) -> Float[Array, "B T D"]:
    """Zero mean and unit variance over the width, then a learned scale (Ba et al. 2016)."""
    if x.dtype == scale.dtype == jnp.float32 and is_for_one_cpu():
        found: Array = _layer_norm(x, scale)
        return found
    y = x.astype(jnp.float32)
    y = y - y.mean(axis=-1, keepdims=True)
    return (y * jax.lax.rsqrt((y * y).mean(axis=-1, keepdims=True) + EPSILON)).astype(x.dtype) * scale


# XLA:CPU writes every array that a derived gradient shares with the way forwards, and sums columns slowly. Here two
# numbers are kept for each position, and the gradient's sums are products. In turns a step of gpt_tiny takes 0.94 of
# the time, of vit_tiny 0.90, of diffusion_tiny 0.97 (jaxlib 0.10.2). Derivatives forwards (`jax.jvp`) are refused of
# it, those of a gradient are not.
@jax.custom_vjp
def _layer_norm(x: Float[Array, "B T D"], scale: Float[Array, " D"]) -> Float[Array, "B T D"]:
    """`layer_norm` in float32, for one CPU."""
    return _center(x)[0] * scale


def _center(x: Float[Array, "B T D"]) -> tuple[Float[Array, "B T D"], Float[Array, "B T 1"], Float[Array, "B T 1"]]:
    """Zero mean and unit variance over the width, and by how much each position was moved and then stretched."""
    mean = x.mean(axis=-1, keepdims=True)
    y = x - mean
    stretch = jax.lax.rsqrt((y * y).mean(axis=-1, keepdims=True) + EPSILON)
    return y * stretch, mean, stretch


def _layer_norm_forwards(x: Array, scale: Array) -> tuple[Array, tuple[Array, ...]]:
    y, mean, stretch = _center(x)
    return y * scale, (x, mean, stretch, scale)


def _layer_norm_backwards(kept: tuple[Array, ...], gradient: Array) -> tuple[Array, Array]:
    x, mean, stretch, scale = kept
    y = (x - mean) * stretch
    along = gradient * y
    rows = along.reshape(-1, len(scale))
    moved, stretched = (((part @ scale) / len(scale))[..., None] for part in (gradient, along))
    return stretch * (gradient * scale - moved - y * stretched), jnp.ones(len(rows), rows.dtype) @ rows


_layer_norm.defvjp(_layer_norm_forwards, _layer_norm_backwards)


def rms_norm(x: Float[Array, "B T D"], scale: Float[Array, " D"], how: str = "jnp") -> Float[Array, "B T D"]:
    """Unit mean square over the width, then a learned scale (Zhang and Sennrich 2019).

    Args:
        x: activations.
        scale: learned.
        how: `jnp`, written out here; `ffi` or `pallas`, one kernel of our own.
    """
    if how == "ffi":
        return ffi_rms_norm.rms_norm(x, scale)
    if how == "pallas":
        from nightjar_models.kernels import rms_norm_pallas  # Pallas takes a second to import

        return rms_norm_pallas.rms_norm(x, scale)
    y = x.astype(jnp.float32)
    return (y * jax.lax.rsqrt((y * y).mean(axis=-1, keepdims=True) + EPSILON)).astype(x.dtype) * scale


def attend(
    q: Float[Array, "B H T K"],
    k: Float[Array, "B G S K"],
    v: Float[Array, "B G S K"],
    *,
    how: str,
    causal: bool = False,
    seen: Bool[Array, "B S"] | None = None,
    bias: Float[Array, "H T S"] | None = None,
    scale: float | None = None,
) -> Float[Array, "B H T K"]:
    """What each position takes from those that it sees (Vaswani et al. 2017; grouped heads: Ainslie et al. 2023).

    Args:
        q: queries.
        k: keys; head n of the queries looks at head `n * G // H` of the keys.
        v: values.
        how: `einsum`, written out here; `jax.nn.dot_product_attention` by `xla` or `cudnn`; or `ring`, over the
            positions of the active mesh. On XLA:CPU the einsum takes half the time of `xla`, forward and backward.
            What `cudnn` refuses, and a ring that would have one device, a bias or padding, the einsum computes, and
            the log says so.
        causal: no position sees a later one.
        seen: false where nobody looks, such as padding.
        bias: added to the scores, such as T5's relative positions.
        scale: of the scores; None for the root of 1/K.
    """
    mesh = active_mesh()
    split = mesh is not None and mesh.shape["sequence"] > 1
    if how == CUDNN:
        how = choose(how, describe_call(q, k, biased=bias is not None, split=split, mesh=mesh))
    if how == "ring":
        alike = bias is None and seen is None and q.shape[2] == k.shape[2]
        if mesh is not None and split and alike:
            return ring_attention(q, k, v, mesh=mesh, causal=causal, scale=scale)
        how = fall_back(how, ["a bias, padding or other positions" if split else "no mesh splits the positions"])
    if how in ("xla", CUDNN):
        return _library_attention(q, k, v, how=how, causal=causal, seen=seen, bias=bias, scale=scale)
    if (copies := q.shape[1] // k.shape[1]) > 1:
        k, v = jnp.repeat(k, copies, axis=1), jnp.repeat(v, copies, axis=1)
    apart = is_small(q.shape[2], *k.shape[2:]) and q.dtype == k.dtype and is_for_one_cpu()
    score, weigh = (_score_apart, _weigh_apart) if apart else (_score, _weigh)
    scores = score(q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    scores = scores.astype(jnp.float32)
    if bias is not None:
        scores = scores + bias.astype(jnp.float32)
    if causal:
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, MASKED)
    if seen is not None:
        scores = jnp.where(seen[:, None, None, :], scores, MASKED)
    if v.dtype != jnp.float32 or not is_for_cpu():  # XLA fuses a softmax for a GPU; in bf16 the other form rounds more
        return weigh(jax.nn.softmax(scores, axis=-1).astype(v.dtype), v)
    # A softmax that is divided by its sum behind the product with v: once for each position and not for each pair.
    weights = jnp.exp(scores - jax.lax.stop_gradient(scores.max(axis=-1, keepdims=True)))
    return weigh(weights, v) / weights.sum(axis=-1, keepdims=True)


def is_small(positions: int, seen: int, width: int) -> bool:
    """Whether a head computes so little that calling a CPU's library takes longer than that does.

    Args:
        positions: that look.
        seen: positions that are looked at.
        width: of a head.
    """
    return positions * seen * width <= SMALL_PRODUCT


def _score(q: Float[Array, "B H T K"], k: Float[Array, "B H S K"]) -> Float[Array, "B H T S"]:
    return jnp.einsum("bhtk,bhsk->bhts", q, k)


def _weigh(weights: Float[Array, "B H T S"], v: Float[Array, "B H S K"]) -> Float[Array, "B H T K"]:
    return jnp.einsum("bhts,bhsk->bhtk", weights, v)


def _flip(x: Float[Array, "B H T S"]) -> Float[Array, "B H S T"]:
    """The transposed matrices as an array of their own, which XLA does not make part of a product."""
    flipped: Array = jax.lax.optimization_barrier(x.swapaxes(2, 3))  # type: ignore[no-untyped-call]
    return flipped


# The gradients of keys and of values sum over the positions that look. XLA:CPU has no batched product for that and
# calls its library for each head of each example (jaxlib 0.10.2); with `_flip` all are one product. In turns a step of
# vit_tiny takes 0.75 of the time, of t5_tiny 0.96, and of gpt_tiny, whose products are large, 1.0 to 1.3. Derivatives
# forwards (`jax.jvp`) are refused of these two, those of a gradient are not.
_score_apart, _weigh_apart = jax.custom_vjp(_score), jax.custom_vjp(_weigh)
_score_apart.defvjp(lambda q, k: (_score(q, k), (q, k)), lambda kept, g: (g @ kept[1], _flip(g) @ kept[0]))
_weigh_apart.defvjp(
    lambda w, v: (_weigh(w, v), (w, v)), lambda kept, g: (g @ kept[1].swapaxes(2, 3), _flip(kept[0]) @ g)
)


def _library_attention(
    q: Float[Array, "B H T K"], k: Float[Array, "B G S K"], v: Float[Array, "B G S K"], **options: Any
) -> Float[Array, "B H T K"]:
    """`jax.nn.dot_product_attention`, which wants the positions before the heads."""
    seen, bias = options["seen"], options["bias"]
    mask = None if seen is None else jnp.broadcast_to(seen[:, None, None, :], (len(seen), 1, q.shape[2], k.shape[2]))
    query, key, value = (jnp.swapaxes(x, 1, 2) for x in (q, k, v))
    found = jax.nn.dot_product_attention(
        query,
        key,
        value,
        bias=None if bias is None else bias[None].astype(q.dtype),
        mask=mask,
        scale=options["scale"],
        is_causal=options["causal"],
        implementation=options["how"],
    )
    return jnp.swapaxes(found, 1, 2)


def rotate(x: Float[Array, "B H T K"], base: float) -> Float[Array, "B H T K"]:
    """Turns the pair (n, n + K/2) of each head by an angle that grows with the position (Su et al. 2021).

    The angle of pair n at position t is `t * base ** (-2n / K)`; products of queries and keys depend on distances only.
    """
    half = x.shape[-1] // 2
    rates = jnp.exp(jnp.arange(half, dtype=jnp.float32) * (-math.log(base) / half))
    angles = jnp.arange(x.shape[-2], dtype=jnp.float32)[:, None] * rates
    cosine, sine = jnp.cos(angles), jnp.sin(angles)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)
    return turned.astype(x.dtype)


def feed_forward(
    x: Float[Array, "B T D"],
    w_in: Float[Array, "D F"],
    b_in: Float[Array, " F"],
    w_out: Float[Array, "F D"],
    b_out: Float[Array, " D"],
    products: Sequence[Callable[[Array, Array], Array]] = (jnp.matmul,) * 2,
) -> Float[Array, "B T D"]:
    """Two linear maps with a GELU (tanh form) between them, position by position.

    Args:
        x: activations.
        w_in: of the first map.
        b_in: of the first map.
        w_out: of the second map.
        b_out: of the second map.
        products: how each of the two matrices is multiplied.
    """
    into, out = products
    return (out(jax.nn.gelu(into(x, w_in) + b_in), w_out) + b_out).astype(x.dtype)


def gated_feed_forward(
    x: Float[Array, "*B D"],
    w_gate: Float[Array, "*E D F"],
    w_in: Float[Array, "*E D F"],
    w_out: Float[Array, "*E F D"],
    activation: Callable[[Array], Array] = jax.nn.silu,
    products: Sequence[Callable[[Array, Array], Array]] = (jnp.matmul,) * 3,
) -> Float[Array, "*B D"]:
    """A linear map, gated by another through an activation, then a third one (SwiGLU and GEGLU: Shazeer 2020).

    Args:
        x: activations.
        w_gate: of the gate.
        w_in: of what is gated.
        w_out: back to the width.
        activation: of the gate.
        products: how each of the three matrices is multiplied.
    """
    gate, into, out = products
    return out(activation(gate(x, w_gate)) * into(x, w_in), w_out).astype(x.dtype)


def cross_entropy(logits: Float[Array, "*B V"], labels: Int[Array, "*B"]) -> Float[Array, "*B"]:
    """The negative log likelihood of each label, in nats.

    The gradient of a lookup writes into an array that lies in memory, in float32: 13 GB for gpt3_126m. Where logits are
    bf16, each label's is therefore found by comparing, whose gradient is written once and in bf16.
    """
    numbers = logits.astype(jnp.float32)
    if logits.dtype == jnp.float32:
        found: Array = optax.softmax_cross_entropy_with_integer_labels(numbers, labels)
        return found
    is_label = labels[..., None] == jnp.arange(logits.shape[-1])
    return jax.nn.logsumexp(numbers, axis=-1) - jnp.where(is_label, numbers, 0).sum(axis=-1)
