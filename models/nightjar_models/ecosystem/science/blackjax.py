"""BlackJAX cell: NUTS, tuned by window adaptation, draws from a Gaussian whose moments are known."""

from __future__ import annotations

from nightjar_models.ecosystem.cell import Check, Finding, time_calls

DRAWS, CHAINS = 1000, 4


def run() -> Finding:
    """Runs the cell."""
    import blackjax
    import jax
    import jax.numpy as jnp
    import numpy as np

    mean = jnp.array([1.0, -2.0])
    covariance = np.array([[2.0, 0.6], [0.6, 0.5]])
    precision = jnp.asarray(np.linalg.inv(covariance))

    def log_density(position):
        return -0.5 * (position - mean) @ precision @ (position - mean)

    warmup = blackjax.window_adaptation(blackjax.nuts, log_density)
    (state, parameters), _ = warmup.run(jax.random.key(0), jnp.zeros(2), num_steps=400)
    sampler = blackjax.nuts(log_density, **parameters)

    @jax.jit
    def draw(key):
        def chain(key):
            def step(state, key):
                state, info = sampler.step(key, state)
                return state, (state.position, info.is_divergent)

            return jax.lax.scan(step, state, jax.random.split(key, DRAWS))[1]

        return jax.vmap(chain)(jax.random.split(key, CHAINS))

    samples = time_calls(lambda: draw(jax.random.key(1)), items=DRAWS * CHAINS, unit="draws/s", calls=3)
    positions, divergent = draw(jax.random.key(1))
    flat = np.asarray(positions).reshape(-1, 2)
    return Finding(
        checks=[
            Check(
                name="mean_error",
                value=float(np.abs(flat.mean(axis=0) - np.asarray(mean)).max()),
                expected=0.0,
                tolerance=0.15,
                why=f"{DRAWS * CHAINS} draws, five standard errors",
            ),
            Check(
                name="covariance_error",
                value=float(np.abs(np.cov(flat.T) - covariance).max()),
                expected=0.0,
                tolerance=0.3,
                why="the same",
            ),
            Check(
                name="divergences", value=float(divergent.sum()), expected=0.0, tolerance=0, why="a Gaussian has none"
            ),
        ],
        samples=samples,
    )
