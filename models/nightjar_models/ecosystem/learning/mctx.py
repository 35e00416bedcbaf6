"""Mctx cell: tree search by Gumbel MuZero finds the best action of a small game, as its value says."""

from __future__ import annotations

from nightjar_models.ecosystem.cell import Check, Finding, time_calls

BATCH, SIMULATIONS = 64, 32


def run() -> Finding:
    """Runs the cell."""
    import jax
    import jax.numpy as jnp
    import mctx

    rewards = jnp.array([0.1, 0.9, 0.3, 0.5])

    def step(parameters, key, action, embedding):
        output = mctx.RecurrentFnOutput(
            reward=rewards[action],
            discount=jnp.zeros_like(rewards[action]),
            prior_logits=jnp.zeros((action.shape[0], 4)),
            value=jnp.zeros_like(rewards[action]),
        )
        return output, embedding

    @jax.jit
    def search(key):
        root = mctx.RootFnOutput(
            prior_logits=jnp.zeros((BATCH, 4)), value=jnp.zeros(BATCH), embedding=jnp.zeros((BATCH, 1))
        )
        return mctx.gumbel_muzero_policy((), key, root, step, SIMULATIONS, gumbel_scale=0.0)

    samples = time_calls(
        lambda: search(jax.random.key(0)).action, items=BATCH * SIMULATIONS, unit="simulations/s", calls=5
    )
    found = search(jax.random.key(0))
    values = found.search_tree.summary().qvalues
    return Finding(
        checks=[
            Check(name="weights", value=float(found.action_weights.sum()), expected=BATCH, tolerance=0.1, why="1 each"),
            Check(
                name="best_action_share",
                value=float(jnp.mean(found.action == 1)),
                expected=1.0,
                tolerance=0,
                why="the action with the largest reward; no noise is added",
            ),
            Check(
                name="value_error",
                value=float(jnp.abs(values - rewards).max()),
                expected=0.0,
                tolerance=1e-6,
                why="the game ends after one action: its value is the reward",
            ),
        ],
        samples=samples,
    )
