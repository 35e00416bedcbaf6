"""evosax cell: CMA-ES finds the minimum of a sphere and of Rosenbrock's valley."""

from __future__ import annotations

from nightjar_models.ecosystem.cell import Check, Finding, time_calls

GENERATIONS = 250


def run() -> Finding:
    """Runs the cell."""
    import jax
    import jax.numpy as jnp
    from evosax.algorithms import CMA_ES

    def sphere(x):
        return jnp.sum((x - 1.0) ** 2)

    def rosenbrock(x):
        return jnp.sum(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)

    def search(function, dimensions):
        algorithm = CMA_ES(population_size=32, solution=jnp.zeros(dimensions))
        parameters = algorithm.default_params

        @jax.jit
        def find(key):
            first, key = jax.random.split(key)
            state = algorithm.init(first, jnp.zeros(dimensions), parameters)

            def generation(state, key):
                ask, tell = jax.random.split(key)
                population, state = algorithm.ask(ask, state, parameters)
                state, _ = algorithm.tell(tell, population, jax.vmap(function)(population), state, parameters)
                return state, None

            state, _ = jax.lax.scan(generation, state, jax.random.split(key, GENERATIONS))
            return state.best_fitness, jnp.abs(state.best_solution - 1.0).max()

        return find

    ball, valley = search(sphere, 8), search(rosenbrock, 4)
    samples = time_calls(lambda: valley(jax.random.key(0)), items=GENERATIONS, unit="generations/s", calls=5)
    (lowest, away), (deepest, beside) = ball(jax.random.key(0)), valley(jax.random.key(0))
    why = f"its minimum, after {GENERATIONS} generations"
    return Finding(
        checks=[
            Check(name="sphere", value=float(lowest), expected=0.0, tolerance=1e-6, why=why),
            Check(name="rosenbrock", value=float(deepest), expected=0.0, tolerance=1e-3, why=why),
            Check(name="distance", value=float(away + beside), expected=0.0, tolerance=0.1, why="both are at ones"),
        ],
        samples=samples,
    )
