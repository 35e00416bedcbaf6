"""gymnax cell: the cart and the pendulum move by their equations, and environments run by the thousand."""

from __future__ import annotations

import math

from nightjar_models.ecosystem.cell import Check, Finding, time_calls

ENVIRONMENTS, STEPS = 512, 100


def run() -> Finding:
    """Runs the cell."""
    import gymnax
    import jax
    import jax.numpy as jnp
    import numpy as np

    environment, parameters = gymnax.make("CartPole-v1")

    def roll(key):
        start, key = jax.random.split(key)
        _, state = environment.reset(start, parameters)

        def step(state, key):
            choose, move = jax.random.split(key)
            action = environment.action_space(parameters).sample(choose)
            _, state, reward, *ends, _ = environment.step(move, state, action, parameters)
            return state, (reward, sum(ends))  # done; since 1.0 terminated and truncated

        return jax.lax.scan(step, state, jax.random.split(key, STEPS))[1]

    roll_all = jax.jit(lambda key: jax.vmap(roll)(jax.random.split(key, ENVIRONMENTS)))
    samples = time_calls(lambda: roll_all(jax.random.key(0)), items=ENVIRONMENTS * STEPS, unit="steps/s", calls=5)
    rewards, done = roll_all(jax.random.key(0))

    observed, state = environment.reset(jax.random.key(1), parameters)
    x, x_dot, theta, theta_dot = np.asarray(observed, dtype=np.float64)
    after, *_ = environment.step(jax.random.key(2), state, 1, parameters)
    push = (10.0 + 0.05 * theta_dot**2 * math.sin(theta)) / 1.1
    turn = (9.8 * math.sin(theta) - math.cos(theta) * push) / (0.5 * (4 / 3 - 0.1 * math.cos(theta) ** 2 / 1.1))
    slide = push - 0.05 * turn * math.cos(theta) / 1.1
    exact = np.array([x + 0.02 * x_dot, x_dot + 0.02 * slide, theta + 0.02 * theta_dot, theta_dot + 0.02 * turn])
    return Finding(
        checks=[
            Check(
                name="cart_error",
                value=float(np.abs(np.asarray(after) - exact).max()),
                expected=0.0,
                tolerance=1e-5,
                why="the equations of Barto, Sutton and Anderson, one Euler step of 0.02 s",
            ),
            Check(
                name="steps_until_it_falls",
                value=float(rewards.size / jnp.maximum(1, done.sum())),
                expected=22.0,
                tolerance=4.0,
                why="random pushes keep the pole up for about 22 steps",
            ),
        ],
        samples=samples,
    )
