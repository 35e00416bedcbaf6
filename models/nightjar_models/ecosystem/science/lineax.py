"""Lineax and Equinox cell: linear systems solved by four methods, a gradient through a solve, a module that trains."""

from __future__ import annotations

from nightjar_models.ecosystem.cell import Check, Finding, time_calls

SIZE = 60


def run() -> Finding:
    """Runs the cell."""
    import equinox as eqx
    import jax
    import jax.numpy as jnp
    import lineax as lx
    import numpy as np

    rng = np.random.default_rng(0)
    square = rng.normal(size=(SIZE, SIZE))
    positive = (square @ square.T + SIZE * np.eye(SIZE)).astype(np.float32)
    vector = rng.normal(size=SIZE).astype(np.float32)
    exact = np.linalg.solve(positive.astype(np.float64), vector)
    operator = lx.MatrixLinearOperator(jnp.asarray(positive), lx.positive_semidefinite_tag)
    solvers = {
        "lu": lx.LU(),
        "cholesky": lx.Cholesky(),
        "cg": lx.CG(rtol=1e-6, atol=1e-6),
        "svd": lx.SVD(),
    }
    solve = eqx.filter_jit(lambda operator, vector, solver: lx.linear_solve(operator, vector, solver).value)
    samples = time_calls(lambda: solve(operator, vector, solvers["cholesky"]), items=1, unit="solves/s", calls=20)
    errors = {name: np.abs(solve(operator, vector, solver) - exact).max() for name, solver in solvers.items()}

    def total(vector):
        return jnp.sum(lx.linear_solve(operator, vector, lx.Cholesky()).value)

    slope = jax.grad(total)(jnp.asarray(vector))
    tall = rng.normal(size=(SIZE, 5)).astype(np.float32)
    least = lx.linear_solve(lx.MatrixLinearOperator(jnp.asarray(tall)), vector, lx.QR()).value
    return Finding(
        checks=[
            *(
                Check(name=f"{name}_error", value=float(error), expected=0.0, tolerance=1e-5, why="numpy.linalg.solve")
                for name, error in errors.items()
            ),
            Check(
                name="gradient_error",
                value=float(np.abs(slope - np.linalg.solve(positive, np.ones(SIZE))).max()),
                expected=0.0,
                tolerance=1e-5,
                why="the transposed solve",
            ),
            Check(
                name="least_squares_error",
                value=float(np.abs(least - np.linalg.lstsq(tall, vector, rcond=None)[0]).max()),
                expected=0.0,
                tolerance=1e-5,
                why="numpy.linalg.lstsq",
            ),
        ],
        samples=samples,
    )
