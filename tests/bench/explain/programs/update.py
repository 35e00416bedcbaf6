"""A step of AdamW with a schedule and clipping, for a linear model."""
# mypy: ignore-errors

import jax
import jax.numpy as jnp


def arguments():
    keys = jax.random.split(jax.random.key(5), 4)
    return (
        jax.random.normal(keys[0], (16, 8)),
        {
            "mean": jax.random.normal(keys[1], (16, 8)) / 10,
            "square": jnp.abs(jax.random.normal(keys[2], (16, 8))) / 100,
        },
        jnp.int32(7),
        jax.random.normal(keys[3], (32, 16)),
    )


def rate(count):
    warm = jnp.minimum(count / 10, 1.0)
    decay = 0.5 * (1 + jnp.cos(jnp.pi * count / 100))
    return 1e-2 * warm * decay


def objective(weights, x):
    y = x @ weights
    return jnp.mean(y**4) / 4 + jnp.mean(jnp.abs(y))


def loss(weights, moments, count, x):
    gradient = jax.grad(objective)(weights, x)
    length = jnp.sqrt(jnp.sum(gradient**2))
    gradient = gradient * jnp.minimum(1.0, 0.5 / length)
    mean = 0.9 * moments["mean"] + (1 - 0.9) * gradient
    square = 0.99 * moments["square"] + (1 - 0.99) * gradient**2
    ahead = (mean / (1 - 0.9 ** (count + 1))) / (jnp.sqrt(square / (1 - 0.99 ** (count + 1))) + 1e-8)
    moved = weights - rate(count) * (ahead + 0.1 * weights)
    return jnp.sum(moved**2)
