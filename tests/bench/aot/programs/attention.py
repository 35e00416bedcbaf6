"""A layer of attention, in Flax NNX."""

import jax
import jax.numpy as jnp
import optax
from flax import nnx

HEADS = 4


class Block(nnx.Module):
    def __init__(self, width, rngs):
        self.qkv = nnx.Linear(width, 3 * width, use_bias=False, rngs=rngs)
        self.out = nnx.Linear(width, width, use_bias=False, rngs=rngs)
        self.gate = nnx.Linear(width, 2 * width, use_bias=False, rngs=rngs)
        self.down = nnx.Linear(2 * width, width, use_bias=False, rngs=rngs)
        self.norm = nnx.RMSNorm(width, rngs=rngs)

    def attend(self, x):
        batch, length, width = x.shape
        q, k, v = jnp.split(self.qkv(x).reshape(batch, length, 3 * HEADS, width // HEADS), 3, axis=2)
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / jnp.sqrt(width // HEADS)
        mask = jnp.arange(length)[:, None] >= jnp.arange(length)[None, :]
        weights = jax.nn.softmax(jnp.where(mask, scores, -1e30), axis=-1)
        return self.out(jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(x.shape))

    def __call__(self, x):
        h = x + self.attend(self.norm(x))
        return h + self.down(jax.nn.silu(self.gate(h)) * jnp.tanh(h.sum(axis=-1, keepdims=True)))


@nnx.jit
def step(model, optimizer, batch):
    def loss_of(model):
        h = model(batch["x"])
        error = jnp.square(h - batch["y"])
        return error.mean() + 1e-4 * jnp.abs(h).mean()

    loss, gradients = nnx.value_and_grad(loss_of)(model)
    optimizer.update(model, gradients)
    return loss


def make():
    model = Block(64, nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.Param)
    return model, optimizer, {"x": jnp.zeros((4, 32, 64)), "y": jnp.zeros((4, 32, 64))}
