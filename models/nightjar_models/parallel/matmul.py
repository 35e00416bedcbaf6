"""Matrix products that overlap with their collective: one piece is multiplied while the next is sent.

In: inside `shard_map`, a device's part of two matrices. Out: the result of `all_gather` and then `@`, or of `@` and
then `psum_scatter`, by as many collective-permutes as the axis has further devices. These are the two products of a
layer with Megatron's tensor and sequence parallelism.

Each product waits for the previous one. Otherwise XLA merges products that share a factor into a single one, behind
the last message (its dot merger, up to 32 MiB; jaxlib 0.10.2).

Dimensions: T positions on one device, N devices along the axis, D and F widths; split dimensions are marked (`F/N`).

Source: Wang et al. 2023, "Overlap Communication with Dependent Computation via Decomposition in Large Deep Learning
Models" (ASPLOS).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def gather_matmul(x: Float[Array, "T D"], w: Float[Array, "D F/N"], axis: str) -> Float[Array, "N*T F/N"]:
    """All rows of x times this device's columns of w: `all_gather(x) @ w`."""
    size, position = jax.lax.axis_size(axis), jax.lax.axis_index(axis)
    rows = x.shape[0]
    out = jnp.zeros((size * rows, w.shape[1]), jnp.result_type(x, w))
    for step in range(size):
        piece = x
        if step + 1 < size:
            x = jax.lax.ppermute(x, axis, [(i, (i - 1) % size) for i in range(size)])  # type: ignore[no-untyped-call]
        owner = (position + step) % size  # whose rows this piece is
        product = piece @ w
        if step + 1 < size:
            x, product = _in_turn(x, product)
        out = jax.lax.dynamic_update_slice_in_dim(out, product, owner * rows, axis=0)
    return out


def matmul_scatter(y: Float[Array, "N*T F/N"], w: Float[Array, "F/N D"], axis: str) -> Float[Array, "T D"]:
    """This device's rows of the sum over devices of y @ w: `psum_scatter(y @ w)`.

    A sum travels around the ring; each device adds its product for the rows whose sum passes by.
    """
    size, position = jax.lax.axis_size(axis), jax.lax.axis_index(axis)
    rows = y.shape[0] // size
    total = jnp.zeros((rows, w.shape[1]), jnp.result_type(y, w))
    for step in range(size):
        owner = (position - step - 1) % size  # for whom the sum that has arrived is meant
        part = jax.lax.dynamic_slice_in_dim(y, owner * rows, rows) @ w
        y, part = _in_turn(y, part)
        total = total + part
        if step + 1 < size:
            total = jax.lax.ppermute(total, axis, [(i, (i + 1) % size) for i in range(size)])  # type: ignore[no-untyped-call]
    return total


def _in_turn(following: Array, product: Array) -> tuple[Array, Array]:
    """Both as they are, but the next product's operands wait for this one."""
    kept: tuple[Array, Array] = jax.lax.optimization_barrier((following, product))  # type: ignore[no-untyped-call]
    return kept
