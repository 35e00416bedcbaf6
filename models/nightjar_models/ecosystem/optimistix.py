"""Optimistix cell: it finds Rosenbrock's minimum and a root, and differentiates through the root.

The derivative of sqrt(a), found as the root of x^2 - a, is 1 / (2 sqrt(a)) by the implicit function theorem.
"""

from __future__ import annotations

from nightjar_models.ecosystem.cell import Check, Finding, time_calls

PROBLEMS = 512


def run() -> Finding:
    """Runs the cell."""
    import jax
    import jax.numpy as jnp
    import optimistix as optx

    def residuals(x, args):
        return jnp.stack([10 * (x[1] - x[0] ** 2), 1 - x[0]])

    least = optx.LevenbergMarquardt(rtol=1e-6, atol=1e-6)
    descent = optx.BFGS(rtol=1e-6, atol=1e-6)
    newton = optx.Newton(rtol=1e-6, atol=1e-6)

    def root(a):
        return optx.root_find(lambda x, a: x**2 - a, newton, jnp.array(1.0), a).value

    starts = jax.random.uniform(jax.random.key(0), (PROBLEMS, 2), minval=-2.0, maxval=2.0)
    solve_all = jax.jit(jax.vmap(lambda start: optx.least_squares(residuals, least, start, max_steps=512).value))
    samples = time_calls(lambda: solve_all(starts), items=PROBLEMS, unit="problems/s")
    minimum = optx.minimise(lambda x, _: jnp.sum(residuals(x, None) ** 2), descent, jnp.array([-1.2, 1.0])).value
    a = jnp.array(2.0)
    return Finding(
        checks=[
            Check(
                name="least_squares_error",
                value=float(jnp.abs(solve_all(starts) - 1).max()),
                expected=0.0,
                tolerance=1e-4,
                why=f"Rosenbrock's minimum is (1, 1), from {PROBLEMS} starts",
            ),
            Check(
                name="minimise_error",
                value=float(jnp.abs(minimum - 1).max()),
                expected=0.0,
                tolerance=1e-3,
                why="the same by BFGS",
            ),
            Check(name="root", value=float(root(a)), expected=2**0.5, tolerance=1e-6, why="sqrt(2)"),
            Check(
                name="root_gradient",
                value=float(jax.grad(root)(a)),
                expected=0.5 / 2**0.5,
                tolerance=1e-6,
                why="1 / (2 sqrt(2))",
            ),
        ],
        samples=samples,
    )
