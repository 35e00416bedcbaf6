"""Ring attention: keys and values travel around a ring of devices that split the positions.

In: queries, keys and values, split by position over the mesh axis `sequence`. Out: exact attention, split alike. No
device ever holds all keys: each looks at one block at a time, and keeps a running maximum and sum of the softmax.

Dimensions: B batch, H heads, G heads of keys and values, T and S positions on one device, K width of a head.

Source: Liu et al. 2023, "Ring Attention with Blockwise Transformers"; the running softmax: Milakov and Gimelshein 2018.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float

AXIS = "sequence"
_MASKED = -1e30


def ring_attention(
    q: Float[Array, "B H T K"],
    k: Float[Array, "B G T K"],
    v: Float[Array, "B G T K"],
    *,
    mesh: Mesh,
    causal: bool,
    scale: float | None = None,
) -> Float[Array, "B H T K"]:
    """Attention of positions among themselves; T here is the whole length, a multiple of the axis.

    Args:
        k: keys; head n of the queries looks at head `n * G // H` of the keys.
    """
    context = jax.sharding.get_abstract_mesh()  # within another shard_map, such as a pipeline's, its own mesh counts
    around: Any = mesh if context.empty else context
    places = PartitionSpec(None, None, AXIS, None)  # type: ignore[no-untyped-call]
    turn = functools.partial(
        _turn, size=mesh.shape[AXIS], causal=causal, scale=q.shape[-1] ** -0.5 if scale is None else scale
    )
    run = jax.shard_map(turn, mesh=around, in_specs=(places,) * 3, out_specs=places, axis_names={AXIS}, check_vma=False)
    attended: Array = run(q, k, v)
    return attended


def _turn(
    q: Float[Array, "B H T K"],
    k: Float[Array, "B G S K"],
    v: Float[Array, "B G S K"],
    *,
    size: int,
    causal: bool,
    scale: float,
) -> Float[Array, "B H T K"]:
    """One device's part: a block of keys is used while the next one is on its way, so the two can overlap."""
    position = jax.lax.axis_index(AXIS)
    copies = q.shape[1] // k.shape[1]
    highest = jnp.full((*q.shape[:3], 1), _MASKED, jnp.float32)
    total = jnp.zeros((*q.shape[:3], 1), jnp.float32)
    mixed = jnp.zeros(q.shape, jnp.float32)
    for step in range(size):
        block = (k, v)
        if step + 1 < size:
            k, v = jax.lax.ppermute((k, v), AXIS, [(i, (i + 1) % size) for i in range(size)])  # type: ignore[no-untyped-call]
        keys, values = (jnp.repeat(x, copies, axis=1) if copies > 1 else x for x in block)
        scores = jnp.einsum("bhtk,bhsk->bhts", q, keys).astype(jnp.float32) * scale
        if causal:
            owner = (position - step) % size  # whose block this is
            rows = position * q.shape[2] + jnp.arange(q.shape[2])
            columns = owner * k.shape[2] + jnp.arange(k.shape[2])
            scores = jnp.where(rows[:, None] >= columns, scores, _MASKED)
        peak = jnp.maximum(highest, scores.max(axis=-1, keepdims=True))
        weights, kept = jnp.exp(scores - peak), jnp.exp(highest - peak)
        total = total * kept + weights.sum(axis=-1, keepdims=True)
        mixed = mixed * kept + jnp.einsum("bhts,bhsk->bhtk", weights.astype(v.dtype), values)
        highest = peak
    return (mixed / total).astype(v.dtype)
