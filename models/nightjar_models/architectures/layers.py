"""Layers that several models share: attention by a switch, norms by a switch, feed-forward layers, the cross entropy.

In: activations. Out: activations of `Compute.dtype`; parameters are float32, and so are norms' statistics, softmax and
loss. A layer is Flax's own if Flax has it; only the choices of `Compute` are written out here.

Dimensions: B batch, T positions, S positions that are looked at, D model width, H heads, G heads of keys and values,
K width of a head, F feed-forward width, V classes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from flax.nnx.nn.dtypes import promote_dtype
from jaxtyping import Array, Bool, Float, Int

from nightjar_models.architectures.precision import make_dot_general
from nightjar_models.data.pipeline import BRIGHTEST
from nightjar_models.kernels import rms_norm as ffi_rms_norm
from nightjar_models.kernels.fused_attention import CUDNN, describe_call, fall_back, find_refusals
from nightjar_models.parallel.ring import ring_attention
from nightjar_models.parallel.sharding import active_mesh, gather_columns, partitioned
from nightjar_models.presets.config import DTYPES, Compute

EPSILON = 1e-5  # added to a variance
GELU: Callable[[Array], Array] = nnx.gelu  # the tanh form
MATRIX = nnx.initializers.lecun_normal()  # deviation 1/sqrt(D)
TABLE = nnx.initializers.normal(0.02)  # of an embedding that is also the unembedding: logits start small


def residual(layers: int) -> nnx.Initializer:
    """Initializer of a map whose result is added to the stream: GPT-2 shrinks it with the depth."""
    return nnx.initializers.variance_scaling(1 / (2 * layers), "fan_in", "normal")


def brightness(images: Float[Array, "*B"] | Int[Array, "*B"]) -> Float[Array, "*B"]:
    """Pixels in [-1, 1] of images in bytes; floating-point images stay as they are.

    Bytes with a sign are photographs', less 128; digits were scanned with 16 steps.

    >>> brightness(jnp.array([0, 8, 16], jnp.uint8)).tolist()
    [-1.0, 0.0, 1.0]
    >>> brightness(jnp.array([-128, 127], jnp.int8)).tolist()
    [-1.0, 1.0]
    """
    if images.dtype == jnp.int8:
        return (images.astype(jnp.float32) + 0.5) / 127.5
    if images.dtype == jnp.uint8:
        return images.astype(jnp.float32) / (BRIGHTEST / 2) - 1
    return images


class Float32Embed(nnx.Embed):
    """`nnx.Embed` whose gradient is summed in float32, for `compute.embedding_sum=f32`.

    In bf16 most of a sum of a thousand is rounded away, and a GPU adds bf16 to memory slowly: 14.6 ms on an H100 for
    65,536 rows of 768 that are added to 64 rows, as bytes of a text might be; float32 takes 0.4 ms.
    """

    def __call__(self, inputs: Int[Array, "*B"], out_sharding: Any = None) -> Float[Array, "*B D"]:
        """Rows of the table, rounded behind the lookup and not before."""
        rows: Array = gather_columns(self.embedding[...])[inputs]
        return rows.astype(self.dtype)


def make_embed(
    count: int, width: int, init: nnx.Initializer, compute: Compute, rngs: nnx.Rngs, *, by_column: bool = False
) -> nnx.Embed:
    """A table of embeddings, split over tensor by row (or `by_column`), and over fsdp by column until it is used."""
    layer = Float32Embed if compute.embedding_sum == "f32" else nnx.Embed
    dtype = DTYPES[compute.dtype]
    if by_column:
        return layer(count, width, dtype=dtype, embedding_init=partitioned(init, (None, "tensor")), rngs=rngs)
    split = partitioned(init, ("tensor", "fsdp"))
    return layer(count, width, dtype=dtype, embedding_init=split, promote_dtype=promote_and_gather, rngs=rngs)


def promote_and_gather(arrays: Any, /, *, dtype: Any = None, inexact: bool = True) -> Any:
    """`promote_dtype` of an embedding, whose table stands last: it is gathered in the type that computes."""
    *others, table = promote_dtype(arrays, dtype=dtype, inexact=inexact)
    return (*others, gather_columns(table))


class KernelRMSNorm(nnx.RMSNorm):
    """`nnx.RMSNorm` computed by one kernel of Nightjar's own, for `compute.norm`."""

    def __init__(self, width: int, how: str, **options: Any) -> None:
        super().__init__(width, **options)
        self.how = how

    def __call__(self, x: Float[Array, "*B D"], mask: Array | None = None) -> Float[Array, "*B D"]:
        """Unit mean square over the width, then a learned scale."""
        assert self.scale is not None, "use_scale is left as it is"
        scale = self.scale[...].astype(x.dtype)
        if self.how == "ffi":
            return ffi_rms_norm.rms_norm(x, scale)
        from nightjar_models.kernels import rms_norm_pallas  # Pallas takes a second to import

        return rms_norm_pallas.rms_norm(x, scale)


def make_rms_norm(width: int, compute: Compute, rngs: nnx.Rngs) -> nnx.RMSNorm:
    """Unit mean square over the width, then a learned scale (Zhang and Sennrich 2019)."""
    options: dict[str, Any] = {"epsilon": EPSILON, "dtype": DTYPES[compute.dtype], "rngs": rngs}
    if compute.norm == "flax":
        return nnx.RMSNorm(width, **options)
    return KernelRMSNorm(width, compute.norm, **options)


def attend(
    query: Float[Array, "B T H K"],
    key: Float[Array, "B S G K"],
    value: Float[Array, "B S G K"],
    *,
    how: str,
    bias: Float[Array, "1 H T S"] | None = None,
    mask: Bool[Array, "B 1 T S"] | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    **_: Any,
) -> Float[Array, "B T H K"]:
    """Attention of each position to the visible ones (Vaswani et al. 2017; grouped heads: Ainslie et al. 2023).

    Args:
        key: head n of the queries looks at head `n * G // H` of the keys.
        value: of as many heads as the keys.
        how: `jax.nn.dot_product_attention` by `xla` or `cudnn`; or `ring`, over the positions of the active mesh.
            XLA computes inputs that `cudnn` refuses and a ring with one device, a bias or a mask; the log says so.
        bias: added to the scores, such as T5's relative positions.
        mask: false for unattended positions, such as padding.
        is_causal: no position sees a later one.
        scale: of the scores; None for the root of 1/K.
    """
    mesh = active_mesh()
    split = mesh is not None and mesh.shape["sequence"] > 1
    if how == CUDNN:
        request = describe_call(query, key, biased=bias is not None, masked=mask is not None, split=split, mesh=mesh)
        how = fall_back(how, find_refusals(request))
    if how == "ring":
        alike = bias is None and mask is None and query.shape[1] == key.shape[1]
        if mesh is not None and split and alike:
            heads_first = (jnp.swapaxes(x, 1, 2) for x in (query, key, value))
            return jnp.swapaxes(ring_attention(*heads_first, mesh=mesh, causal=is_causal, scale=scale), 1, 2)
        how = fall_back(how, ["a bias, padding or other positions" if split else "no mesh splits the positions"])
    bias = None if bias is None else bias.astype(query.dtype)
    return jax.nn.dot_product_attention(
        query,
        key,
        value,
        bias,
        mask,
        scale=scale,
        is_causal=is_causal,
        implementation="cudnn" if how == CUDNN else "xla",
    )


def make_attention(
    compute: Compute, turn: Callable[[Array], Array] | None = None
) -> Callable[..., Float[Array, "B T H K"]]:
    """The `attention_fn` of an `nnx.MultiHeadAttention`.

    Args:
        compute: chooses who computes it; for `xla` it is Flax's own.
        turn: applied to queries and keys first, such as rotary positions.
    """
    inner: Callable[..., Array] = nnx.dot_product_attention
    if compute.attention != "xla":
        inner = functools.partial(attend, how=compute.attention)
    if turn is None:
        return inner

    def attention(query: Array, key: Array, value: Array, **options: Any) -> Array:
        return inner(turn(query), turn(key), value, **options)

    return attention


def rotate(x: Float[Array, "B T H K"], base: float) -> Float[Array, "B T H K"]:
    """Turns the pair (n, n + K/2) of each head by an angle that grows with the position (Su et al. 2021).

    The angle of pair n at position t is `t * base ** (-2n / K)`; products of queries and keys depend on distances only.
    """
    half = x.shape[-1] // 2
    rates = jnp.exp(jnp.arange(half, dtype=jnp.float32) * (-math.log(base) / half))
    angles = jnp.arange(x.shape[1], dtype=jnp.float32)[:, None, None] * rates
    cosine, sine = jnp.cos(angles), jnp.sin(angles)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)
    return turned.astype(x.dtype)


class FeedForward(nnx.Module):
    """Two linear maps with a GELU between them, position by position."""

    def __init__(self, width: int, hidden: int, layers: int, compute: Compute, *, rngs: nnx.Rngs) -> None:
        dtype, zeros = DTYPES[compute.dtype], nnx.initializers.zeros_init()
        self.linear_in = nnx.Linear(
            width,
            hidden,
            dtype=dtype,
            kernel_init=partitioned(MATRIX, ("fsdp", "tensor")),
            bias_init=partitioned(zeros, ("tensor",)),
            dot_general=make_dot_general(compute),
            rngs=rngs,
        )
        self.linear_out = nnx.Linear(
            hidden,
            width,
            dtype=dtype,
            kernel_init=partitioned(residual(layers), ("tensor", "fsdp")),
            dot_general=make_dot_general(compute),
            rngs=rngs,
        )

    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        return self.linear_out(GELU(self.linear_in(x)))


class GatedFeedForward(nnx.Module):
    """A linear map, gated by another through an activation, then a third one (SwiGLU and GEGLU: Shazeer 2020)."""

    def __init__(
        self,
        width: int,
        hidden: int,
        layers: int,
        compute: Compute,
        *,
        activation: Callable[[Array], Array] = nnx.silu,
        rngs: nnx.Rngs,
    ) -> None:
        self.activation = activation

        def linear(size: int, out: int, init: nnx.Initializer, split: tuple[str, str], product: Any) -> nnx.Linear:
            return nnx.Linear(
                size,
                out,
                use_bias=False,
                dtype=DTYPES[compute.dtype],
                kernel_init=partitioned(init, split),
                dot_general=product,
                rngs=rngs,
            )

        product = make_dot_general(compute)
        if compute.layers != "plain":  # which round both as one matrix, with the scale of linear_in
            product = jax.lax.dot_general
        self.gate = linear(width, hidden, MATRIX, ("fsdp", "tensor"), product)
        self.linear_in = linear(width, hidden, MATRIX, ("fsdp", "tensor"), make_dot_general(compute))
        self.linear_out = linear(hidden, width, residual(layers), ("tensor", "fsdp"), make_dot_general(compute))

    def __call__(self, x: Float[Array, "*B D"]) -> Float[Array, "*B D"]:
        return self.linear_out(self.activation(self.gate(x)) * self.linear_in(x))


def make_unembedding(width: int, count: int, compute: Compute, rngs: nnx.Rngs) -> nnx.Linear:
    """The map to the logits of a model whose embedding is a table of its own."""
    return nnx.Linear(
        width,
        count,
        use_bias=False,
        dtype=DTYPES[compute.dtype],
        kernel_init=partitioned(MATRIX, ("fsdp", "tensor")),
        rngs=rngs,
    )


def cross_entropy(logits: Float[Array, "*B V"], labels: Int[Array, "*B"]) -> Float[Array, "*B"]:
    """The negative log likelihood of each label, in nats.

    The gradient of a lookup writes into an array in memory, in float32: 13 GB for gpt3_126m. If logits are bf16, each
    label's is therefore found by comparing, whose gradient is written once and in bf16.
    """
    numbers = logits.astype(jnp.float32)
    if logits.dtype == jnp.float32:
        likelihood: Array = optax.softmax_cross_entropy_with_integer_labels(numbers, labels)
        return likelihood
    is_label = labels[..., None] == jnp.arange(logits.shape[-1])
    return jax.nn.logsumexp(numbers, axis=-1) - jnp.where(is_label, numbers, 0).sum(axis=-1)
