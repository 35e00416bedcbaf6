"""Pallas kernel for Mosaic GPU: a scaled sum, its blocks copied to shared memory and back by the TMA.

In: two arrays [R, D]. Out: `2 x + y`. Mosaic GPU compiles for Hopper and later only. Nothing of the models uses it: it
is compiled for an absent H100 each night, so that a release of JAX that no longer lowers such kernels is noticed.

Dimensions: R rows, a multiple of 64; D width, a multiple of 128.

Source: docs.jax.dev, "Writing Mosaic GPU kernels with Pallas".
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float

_BLOCK = (64, 128)  # one warpgroup of 128 threads holds it in registers


def add_scaled(x: Float[Array, "R D"], y: Float[Array, "R D"]) -> Float[Array, "R D"]:
    """`2 x + y`, block by block."""
    if x.shape[0] % _BLOCK[0] or x.shape[1] % _BLOCK[1]:
        raise ValueError(f"shape {x.shape}: expected multiples of {_BLOCK[0]} and {_BLOCK[1]}")
    in_shared_memory = plgpu.SMEM(_BLOCK, x.dtype)
    run: Any = plgpu.kernel(
        _add_block,
        out_type=jax.ShapeDtypeStruct(x.shape, x.dtype),  # type: ignore[no-untyped-call]
        scratch_types=[in_shared_memory, in_shared_memory, in_shared_memory, plgpu.Barrier(num_arrivals=2)],
        grid=(x.shape[0] // _BLOCK[0], x.shape[1] // _BLOCK[1]),
        grid_names=("rows", "columns"),
    )
    result: Array = run(x, y)
    return result


def _add_block(x: Any, y: Any, out: Any, x_block: Any, y_block: Any, out_block: Any, barrier: Any) -> None:
    corner = [jax.lax.axis_index(name) * size for name, size in zip(("rows", "columns"), _BLOCK, strict=True)]
    block = tuple(pl.ds(start, size) for start, size in zip(corner, _BLOCK, strict=True))
    plgpu.copy_gmem_to_smem(x.at[block], x_block, barrier)
    plgpu.copy_gmem_to_smem(y.at[block], y_block, barrier)
    plgpu.barrier_wait(barrier)
    out_block[...] = 2 * x_block[...] + y_block[...]
    plgpu.commit_smem()  # type: ignore[no-untyped-call]
    plgpu.copy_smem_to_gmem(out_block, out.at[block])
    plgpu.wait_smem_to_gmem(0)


def make_arguments() -> tuple[Any, Any]:
    """Arguments of `add_scaled`, of the shapes that the nightly compiles."""
    shape = jax.ShapeDtypeStruct((1024, 1024), jnp.float32)  # type: ignore[no-untyped-call]
    return shape, shape


compiled = jax.jit(add_scaled)
