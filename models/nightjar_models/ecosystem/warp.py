"""Warp cell: a kernel called from `jax.jit` computes what JAX computes.

Explicit steps of the heat equation on a ring: the kernel's field equals that of `jnp.roll`, the sum of heat is kept,
and one Fourier mode fades by its known factor a step. A step is symmetric, so the gradient of `weights @ step(heat)` by
the kernel's adjoint, which Warp derives, is `step(weights)`.
"""

from __future__ import annotations

import math

from nightjar_models.ecosystem.cell import Check, Finding, time_calls

CELLS, STEPS, RATE = 4096, 200, 0.2
MODE = 64


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

    # Not written behind the names: where annotations are texts, as in this file, Warp 1.19 refuses to differentiate.
    diffuse.__annotations__ = {"heat": wp.array(dtype=float), "after": wp.array(dtype=float)}
    compiled, make = wp.kernel(diffuse), find_jax_kernel(wp)
    kernel, differentiable = make(compiled), make(compiled, enable_backward=True)

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
        ],
        samples=samples,
    )


def find_jax_kernel(wp):
    """`jax_kernel`, which lies in `warp.jax_experimental` before Warp 1.10."""
    if hasattr(wp, "jax_kernel"):
        return wp.jax_kernel
    from warp.jax_experimental.ffi import jax_kernel

    return jax_kernel
