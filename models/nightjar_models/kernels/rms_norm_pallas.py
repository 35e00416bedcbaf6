"""RMSNorm as a Pallas kernel, a block of rows at a time.

In: activations [..., D] and a scale [D]. Out: the activations with unit mean square, times the scale. On a GPU Pallas
compiles it (Triton, whose blocks are powers of two: other widths are filled up with zeros); on the CPU it runs in
Pallas's interpreter, which is exact and slow. A mesh splits it only as the compiler sees fit: `rms_norm.py` states its
partitioning, this one does not.

Dimensions: R rows, D width.

Source: Zhang and Sennrich 2019, "Root Mean Square Layer Normalization"; docs.jax.dev, "Pallas Quickstart".
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Array, Float

from nightjar_models.kernels.rms_norm import EPSILON

_BLOCK_ROWS = 8  # rows of a few thousand numbers: a block stays within the registers of its threads


@jax.custom_vjp
def rms_norm(x: Float[Array, "*B D"], scale: Float[Array, " D"]) -> Float[Array, "*B D"]:
    """Unit mean square over the width, then a learned scale."""
    return _forward(x, scale)[0]


def _forward(x: Array, scale: Array) -> tuple[Array, tuple[Array, Array, Array]]:
    flat = x.reshape(-1, x.shape[-1])
    rows = jax.ShapeDtypeStruct((flat.shape[0], 1), jnp.float32)  # type: ignore[no-untyped-call]
    y, inverse = _by_blocks(_forward_block, (flat,), scale, (jax.ShapeDtypeStruct(flat.shape, x.dtype), rows))  # type: ignore[no-untyped-call]
    return y.reshape(x.shape), (x, scale, inverse)


def _backward(kept: tuple[Array, Array, Array], dy: Array) -> tuple[Array, Array]:
    x, scale, inverse = kept
    flat, dy = x.reshape(-1, x.shape[-1]), dy.reshape(-1, x.shape[-1])
    (dx,) = _by_blocks(_backward_block, (flat, inverse, dy), scale, (jax.ShapeDtypeStruct(flat.shape, x.dtype),))  # type: ignore[no-untyped-call]
    products = dy.astype(jnp.float32) * flat.astype(jnp.float32) * inverse
    return dx.reshape(x.shape), products.sum(axis=0).astype(scale.dtype)


rms_norm.defvjp(_forward, _backward)


def _forward_block(width: int, x_ref: Any, scale_ref: Any, y_ref: Any, inverse_ref: Any) -> None:
    x = x_ref[...].astype(jnp.float32)
    inverse = jax.lax.rsqrt((x * x).sum(axis=-1, keepdims=True) / width + EPSILON)
    y_ref[...] = (x * inverse * scale_ref[...].astype(jnp.float32)).astype(y_ref.dtype)
    inverse_ref[...] = inverse


def _backward_block(width: int, x_ref: Any, inverse_ref: Any, dy_ref: Any, scale_ref: Any, dx_ref: Any) -> None:
    x, inverse = x_ref[...].astype(jnp.float32), inverse_ref[...]
    g = dy_ref[...].astype(jnp.float32) * scale_ref[...].astype(jnp.float32)
    pull = (g * x).sum(axis=-1, keepdims=True) / width * inverse * inverse
    dx_ref[...] = (inverse * (g - x * pull)).astype(dx_ref.dtype)


def _by_blocks(kernel: Any, by_rows: tuple[Array, ...], scale: Array, results: tuple[Any, ...]) -> Any:
    """Runs a kernel on blocks of rows; rows and columns that fill the last block up are thrown away."""
    rows, width = by_rows[0].shape
    missing = max(-rows % _BLOCK_ROWS, _BLOCK_ROWS - rows)  # also without rows one block
    filled = [_fill(jnp.pad(one, ((0, missing), (0, 0)), constant_values=1)) for one in by_rows]
    scale = _fill(scale)

    def block(array: Any) -> pl.BlockSpec:
        return pl.BlockSpec((_BLOCK_ROWS, array.shape[1]), lambda i: (i, 0))

    shapes = [jax.ShapeDtypeStruct((rows + missing, pl.next_power_of_2(one.shape[1])), one.dtype) for one in results]  # type: ignore[no-untyped-call]
    call = functools.partial(
        pl.pallas_call,
        functools.partial(kernel, width),
        out_shape=shapes,
        grid=((rows + missing) // _BLOCK_ROWS,),
        in_specs=[*map(block, filled), pl.BlockSpec(scale.shape, lambda i: (0,))],
        out_specs=[block(one) for one in shapes],
    )
    # the target decides, not the host: a program for an absent GPU is traced on a CPU
    found = jax.lax.platform_dependent(
        *filled, scale, cpu=call(interpret=True), default=call(compiler_params=triton.CompilerParams())
    )
    return [one[:rows, : result.shape[1]] for one, result in zip(found, results, strict=True)]


def _fill(array: Array) -> Array:
    """Zeros behind the last dimension, up to a power of two."""
    missing = pl.next_power_of_2(array.shape[-1]) - array.shape[-1]
    return jnp.pad(array, (*((0, 0),) * (array.ndim - 1), (0, missing)))
