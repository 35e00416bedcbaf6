"""OTT cell: transport costs of one-dimensional and Gaussian samples equal their closed forms."""

from __future__ import annotations

from nightjar_models.ecosystem.cell import Check, Finding, time_calls

POINTS = 200


def run() -> Finding:
    """Runs the cell."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from ott.geometry import pointcloud
    from ott.problems.linear import linear_problem
    from ott.solvers.linear import sinkhorn, univariate

    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(POINTS, 1)).astype(np.float32))
    y = jnp.asarray(rng.normal(1.0, 2.0, size=(POINTS, 1)).astype(np.float32))
    exact = float(np.mean((np.sort(x[:, 0]) - np.sort(y[:, 0])) ** 2))

    @jax.jit
    def transport(x, y):
        problem = linear_problem.LinearProblem(pointcloud.PointCloud(x, y, epsilon=1e-2))
        return sinkhorn.Sinkhorn(max_iterations=20_000, threshold=1e-4)(problem)

    samples = time_calls(lambda: transport(x, y).f, items=1, unit="problems/s", calls=3)
    solution = transport(x, y)
    problem = linear_problem.LinearProblem(pointcloud.PointCloud(x, y))
    matched = univariate.uniform_solver(problem)
    return Finding(
        checks=[
            Check(
                name="sinkhorn_cost",
                value=float(solution.primal_cost) / exact,
                expected=1.0,
                tolerance=0.02,
                why="the sorted samples' mean square distance; entropy 0.01",
            ),
            Check(
                name="marginal_error",
                value=float(jnp.abs(solution.matrix.sum(axis=1) - 1 / POINTS).sum()),
                expected=0.0,
                tolerance=1e-3,
                why="every point is moved once",
            ),
            Check(
                name="sorted_cost",
                value=float(jnp.ravel(matched.ot_costs)[0]) / exact,
                expected=1.0,
                tolerance=1e-5,
                why="the same, by sorting",
            ),
        ],
        samples=samples,
    )
