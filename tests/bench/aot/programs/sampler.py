"""Draws of tokens from logits, with temperature, top-k and top-p, in plain JAX."""

import functools

import jax
import jax.numpy as jnp


def keep_top(logits, k):
    values, _ = jax.lax.top_k(logits, k)
    return jnp.where(logits < values[..., -1:], -jnp.inf, logits)


def keep_nucleus(logits, p):
    order = jnp.argsort(-logits, axis=-1)
    ranked = jnp.take_along_axis(jax.nn.softmax(logits, axis=-1), order, axis=-1)
    kept = jnp.cumsum(ranked, axis=-1) - ranked < p
    back = jnp.argsort(order, axis=-1)
    return jnp.where(jnp.take_along_axis(kept, back, axis=-1), logits, -jnp.inf)


def penalise(logits, counts, penalty):
    seen = counts > 0
    lower = jnp.where(logits > 0.0, logits / penalty, logits * penalty)
    return jnp.where(seen, lower, logits) - 0.1 * counts


@functools.partial(jax.jit, static_argnames=("k",))
def step(key, logits, counts, temperature, k=8):
    logits = penalise(logits.astype(jnp.float32), counts, 1.2)
    logits = keep_nucleus(keep_top(logits / temperature, k), 0.9)
    noise = -jnp.log(-jnp.log(jax.random.uniform(key, logits.shape, minval=1e-6, maxval=1.0)))
    token = jnp.argmax(logits + noise, axis=-1)
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits, axis=-1), token[:, None], axis=-1)
    return token, counts.at[jnp.arange(token.shape[0]), token].add(1.0), chosen.mean()


def make():
    logits = jnp.zeros((4, 128), jnp.bfloat16)
    return jax.random.key(0), logits, jnp.zeros((4, 128)), jnp.float32(0.7)
