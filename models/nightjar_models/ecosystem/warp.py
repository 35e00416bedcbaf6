"""Warp cell: a kernel called from `jax.jit` agrees with JAX; arrays go to Warp and back without a copy.

Explicit steps of the heat equation on a ring: the kernel's field equals `jnp.roll`'s, the sum of heat is kept,
and one Fourier mode fades by its known factor a step. A step is symmetric, so the gradient of `weights @ step(heat)` by
the kernel's adjoint, which Warp derives, is `step(weights)`. A batch under `jax.vmap` moves as each rod alone does.
`wp.from_jax` and `wp.to_jax` keep address, values, type and device, for every type that both have.
"""

from __future__ import annotations

import math

from nightjar_models.ecosystem.cell import Check, Finding, time_calls
from nightjar_models.ecosystem.dlpack import check_copies

CELLS, STEPS, RATE = 4096, 200, 0.2
MODE = 64
RODS = 5
FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool")


def run() -> Finding:
    """Runs the cell."""
    import jax
    import jax.numpy as jnp
    import warp as wp

    wp.config.quiet = True
    wp.init()

    def diffuse(heat, after):
        i = wp.tid()
        n = heat.shape[0]
        after[i] = heat[i] + RATE * (heat[(i + 1) % n] - 2.0 * heat[i] + heat[(i + n - 1) % n])

    def warm(heat, gain, after):
        i = wp.tid()
        after[i] = heat[i] * gain[i]

    # Not written behind the names: where annotations are texts, as in this file, Warp 1.19 refuses to differentiate.
    diffuse.__annotations__ = dict.fromkeys(("heat", "after"), wp.array(dtype=float))
    warm.__annotations__ = dict.fromkeys(("heat", "gain", "after"), wp.array(dtype=float))
    compiled, product, make = wp.kernel(diffuse), wp.kernel(warm), find_jax_kernel(wp)
    kernel, differentiable = make(compiled), make(compiled, enable_backward=True)
    # `broadcast_all`, the default, joins a batch to one long rod: right for `warm`, wrong for a kernel that reads its
    # neighbours or `heat.shape` (https://github.com/NVIDIA/warp/issues/1161).
    one_by_one, at_once = make(compiled, vmap_method="sequential"), make(product, vmap_method="broadcast_all")

    @jax.jit
    def advance(heat):
        return jax.lax.fori_loop(0, STEPS, lambda _, now: kernel(now)[0], heat)

    @jax.jit
    def reference(heat):
        def step(_, now):
            return now + RATE * (jnp.roll(now, -1) - 2.0 * now + jnp.roll(now, 1))

        return jax.lax.fori_loop(0, STEPS, step, heat)

    heat = jax.random.uniform(jax.random.key(0), (CELLS,))
    wave = jnp.cos(2 * math.pi * MODE * jnp.arange(CELLS) / CELLS)
    samples = time_calls(lambda: advance(heat), items=CELLS * STEPS / 1e6, unit="million cells/s")
    weights = jax.random.normal(jax.random.key(1), (CELLS,))
    gradient = jax.jit(jax.grad(lambda heat: weights @ differentiable(differentiable(heat)[0])[0]))(heat)
    twice = jax.jit(lambda heat: kernel(kernel(heat)[0])[0])(weights)
    rods = jax.random.normal(jax.random.key(2), (RODS, CELLS))
    moved = jax.jit(jax.vmap(lambda rod: one_by_one(rod)[0]))(rods) - jnp.stack([kernel(rod)[0] for rod in rods])
    warmed = jax.jit(jax.vmap(lambda rod, gain: at_once(rod, gain)[0], in_axes=(0, None)))(rods, weights)
    fade = (1 - 2 * RATE * (1 - math.cos(2 * math.pi * MODE / CELLS))) ** STEPS
    return Finding(
        checks=[
            Check(
                name="difference_from_jax",
                value=float(jnp.abs(advance(heat) - reference(heat)).max()),
                expected=0.0,
                tolerance=2e-6,
                why="the same stencil by jnp.roll, float32",
            ),
            Check(
                name="heat_kept",
                value=float(advance(heat).sum() / heat.sum()),
                expected=1.0,
                tolerance=1e-5,
                why="diffusion on a ring loses nothing",
            ),
            Check(
                name="mode_fades",
                value=float(advance(wave)[0]),
                expected=fade,
                tolerance=1e-5,
                why=f"(1 - 2 r (1 - cos k))^{STEPS}",
            ),
            Check(
                name="gradient",
                value=float(jnp.abs(gradient - twice).max()),
                expected=0.0,
                tolerance=5e-6,
                why="of two steps, which are symmetric, by Warp's adjoint",
            ),
            Check(
                name="difference_of_vmap",
                value=float(jnp.abs(moved).max()),
                expected=0.0,
                tolerance=0,
                why=f"{RODS} rods at once, less each alone",
            ),
            Check(
                name="difference_of_vmap_with_one_gain",
                value=float(jnp.abs(warmed - rods * weights).max()),
                expected=0.0,
                tolerance=0,
                why=f"products of {RODS} rods with one that is not mapped, less JAX's",
            ),
            *check_copies(*exchange(wp)),
        ],
        samples=samples,
    )


def exchange(wp):
    """The types of arrays that were copied between JAX and Warp, by their way; those that arrived as something else."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    copied: dict[str, list[str]] = {"from jax": [], "to jax": []}
    wrong: list[str] = []
    with jax.enable_x64(True):
        for name in (*FLOATS, *INTEGERS):
            array = jnp.arange(CELLS).astype(name).reshape(64, -1)
            given = wp.from_jax(array)
            own = wp.clone(given)
            back = wp.to_jax(own)
            copied["from jax"] += [name] * (given.ptr != array.unsafe_buffer_pointer())
            copied["to jax"] += [name] * (own.ptr != back.unsafe_buffer_pointer())
            types = given.dtype is getattr(wp, name) is wp.dtype_from_jax(array.dtype)
            types = types and back.dtype == array.dtype == jnp.dtype(wp.dtype_to_jax(given.dtype))
            places = given.device == wp.device_from_jax(array.device) and back.device == array.device
            places = places and wp.device_to_jax(given.device) == array.device
            same = types and places and np.array_equal(np.asarray(back), np.asarray(array))
            wrong += [name] * (not same)
    points = jnp.arange(3.0 * CELLS).reshape(-1, 3)
    vectors = wp.from_jax(points, dtype=wp.vec3)
    copied["from jax"] += ["vec3"] * (vectors.ptr != points.unsafe_buffer_pointer())
    wrong += ["vec3"] * (vectors.shape != (CELLS,) or not np.array_equal(vectors.numpy(), points))
    return copied, wrong


def find_jax_kernel(wp):
    """`jax_kernel`, which lies in `warp.jax_experimental` before Warp 1.10."""
    if hasattr(wp, "jax_kernel"):
        return wp.jax_kernel
    from warp.jax_experimental.ffi import jax_kernel

    return jax_kernel
