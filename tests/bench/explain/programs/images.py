"""Convolutions, batch statistics and dropout on images, in Flax NNX."""
# mypy: ignore-errors

import jax
import jax.numpy as jnp
from flax import nnx


class Network(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.Conv(1, 8, (3, 3), rngs=rngs)
        self.second = nnx.Conv(8, 8, (3, 3), strides=2, rngs=rngs)
        self.last = nnx.Linear(128, 10, rngs=rngs)

    def __call__(self, x, key):
        x = nnx.relu(self.first(x))
        mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
        x = (x - mean) / jnp.sqrt(variance + 1e-5)
        kept = jax.random.bernoulli(key, 0.9, x.shape)
        x = jnp.where(kept, x / 0.9, 0)
        x = nnx.relu(self.second(x))
        x = x.reshape(x.shape[0], -1)
        return self.last(x)


def arguments():
    x = jax.random.normal(jax.random.key(2), (6, 8, 8, 1))
    return Network(nnx.Rngs(0)), x, jnp.arange(6), jax.random.key(3)


def loss(network, x, labels, key):
    logits = network(x, key)
    shares = jax.nn.softmax(logits)
    wanted = jax.nn.one_hot(labels, 10) * 0.9 + 0.01
    return -jnp.sum(wanted * jnp.log(shares)) / x.shape[0]
