"""Collective broadcast of one device's value along a mesh axis.

In: a value inside `shard_map`, and the source position along the axis. Out: the source's value on every device. GPUs
have a collective for it (`collective-broadcast`); XLA:CPU has none in JAX 0.10, so there the others add zeros to it in
an all-reduce, which gives the same bits and moves twice as many. `broadcast` logs when it uses the all-reduce.
"""

from __future__ import annotations

import logging

import jax
import jax.numpy as jnp
from jaxtyping import Array

log = logging.getLogger(__name__)


def broadcast(x: Array, axis: str, *, source: int, platform: str) -> Array:
    """The value of position `source` along a mesh axis, at every position.

    Args:
        x: this device's value.
        axis: the mesh axis.
        source: position of the value to send.
        platform: platform of the mesh's devices: `cuda`, `gpu` or `cpu`.
    """
    if platform != "cpu":
        # A tuple: the lowering of JAX 0.10.2 reads a bare name letter by letter, each as an axis.
        sent: Array = jax.lax.pbroadcast(x, (axis,), source)  # type: ignore[no-untyped-call]
        return sent
    log.info("collective broadcast over %s: all-reduce of masked values, since XLA:CPU has no broadcast", axis)
    return masked_sum(x, axis, source=source)


def masked_sum(x: Array, axis: str, *, source: int) -> Array:
    """The value of position `source`, by an all-reduce in which all other positions add zeros; differentiable."""
    wide = x.astype(jnp.int8) if x.dtype == jnp.bool_ else x
    kept = jnp.where(jax.lax.axis_index(axis) == source, wide, jnp.zeros_like(wide))
    summed: Array = jax.lax.psum(kept, axis)  # type: ignore[no-untyped-call]
    return summed.astype(x.dtype)
