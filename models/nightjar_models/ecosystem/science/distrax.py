"""Distrax cell: densities, divergences and samples of distributions whose formulas are short."""

from __future__ import annotations

import math

from nightjar_models.ecosystem.cell import Check, Finding, time_calls

DRAWS = 200_000


def run() -> Finding:
    """Runs the cell."""
    import distrax
    import jax
    import jax.numpy as jnp

    normal, other = distrax.Normal(1.0, 2.0), distrax.Normal(0.0, 1.0)
    mixture = distrax.MixtureSameFamily(
        distrax.Categorical(probs=jnp.array([0.25, 0.75])), distrax.Normal(jnp.array([-1.0, 1.0]), jnp.ones(2))
    )
    lognormal = distrax.Transformed(distrax.Normal(0.0, 1.0), distrax.Lambda(jnp.exp))
    draw = jax.jit(lambda key: mixture.sample(seed=key, sample_shape=(DRAWS,)))
    samples = time_calls(lambda: draw(jax.random.key(0)), items=DRAWS, unit="draws/s")
    drawn = draw(jax.random.key(0))
    return Finding(
        checks=[
            Check(
                name="normal_log_prob",
                value=float(normal.log_prob(2.0)),
                expected=-0.125 - math.log(2.0) - 0.5 * math.log(2 * math.pi),
                tolerance=1e-6,
                why="-z^2/2 - log s - log(2 pi)/2",
            ),
            Check(
                name="normal_divergence",
                value=float(normal.kl_divergence(other)),
                expected=-math.log(2.0) + 2.5 - 0.5,
                tolerance=1e-6,
                why="log(s2/s1) + (s1^2 + (m1 - m2)^2) / (2 s2^2) - 1/2",
            ),
            Check(
                name="lognormal_log_prob",
                value=float(lognormal.log_prob(math.e)),
                expected=-0.5 - 0.5 * math.log(2 * math.pi) - 1.0,
                tolerance=1e-6,
                why="the normal's, less log y: the bijector's determinant",
            ),
            Check(
                name="mixture_mean",
                value=float(drawn.mean()),
                expected=0.5,
                tolerance=0.015,
                why=f"0.75 - 0.25, five standard errors of {DRAWS} draws",
            ),
            Check(
                name="softmax_entropy",
                value=float(distrax.Categorical(logits=jnp.zeros(8)).entropy()),
                expected=math.log(8.0),
                tolerance=1e-6,
                why="log 8",
            ),
        ],
        samples=samples,
    )
