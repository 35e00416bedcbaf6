"""A gated recurrent network over a sequence, by a scan."""
# mypy: ignore-errors

import jax
import jax.numpy as jnp


def arguments():
    keys = jax.random.split(jax.random.key(1), 4)
    weights = {"in": jax.random.normal(keys[0], (3, 8, 16)) / 3, "state": jax.random.normal(keys[1], (3, 16, 16)) / 4}
    return weights, jax.random.normal(keys[2], (12, 4, 8)), jax.random.normal(keys[3], (4, 16))


def cell(weights, state, x):
    inputs = jnp.einsum("bi,gio->gbo", x, weights["in"])
    reset = jax.nn.sigmoid(inputs[0] + state @ weights["state"][0])
    update = jax.nn.sigmoid(inputs[1] + state @ weights["state"][1])
    new = jnp.tanh(inputs[2] + (reset * state) @ weights["state"][2])
    return update * state + (1 - update) * new


def loss(weights, sequence, target):
    def body(carry, x):
        state, total = carry
        state = cell(weights, state, x)
        return (state, total + jnp.mean(state)), None

    start = (jnp.zeros((4, 16)), 0.0)
    (state, total), _ = jax.lax.scan(body, start, sequence)
    error = jnp.mean((state - target) ** 2)
    return error + 0.01 * total
