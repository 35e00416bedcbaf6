"""A block of a transformer and its loss, in plain JAX."""
# mypy: ignore-errors

import jax
import jax.numpy as jnp


def arguments():
    keys = jax.random.split(jax.random.key(0), 6)
    shapes = {"qkv": (3, 32, 32), "out": (32, 32), "up": (32, 64), "down": (64, 32)}
    weights = {n: jax.random.normal(k, s) * s[-2] ** -0.5 for (n, s), k in zip(shapes.items(), keys[:4], strict=True)}
    x = jax.random.normal(keys[4], (4, 24, 32))
    return weights | {"gain": jnp.ones(32)}, x, jax.random.randint(keys[5], (4, 24), 0, 32)


def norm(x, gain):
    scale = jnp.mean(x * x, axis=-1, keepdims=True)
    return x * jax.lax.rsqrt(scale + 1e-6) * gain


def rotate(x):
    half = x.shape[-1] // 2
    angles = jnp.arange(x.shape[1])[:, None] * 100.0 ** (-jnp.arange(half) / half)
    left, right = x[..., :half], x[..., half:]
    turned = [left * jnp.cos(angles) - right * jnp.sin(angles), left * jnp.sin(angles) + right * jnp.cos(angles)]
    return jnp.concatenate(turned, axis=-1)


def attend(weights, x):
    q, k, v = (x @ w for w in weights["qkv"])
    scores = jnp.einsum("btd,bsd->bts", rotate(q), rotate(k)) / 32**0.5
    mask = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
    shares = jax.nn.softmax(jnp.where(mask, scores, -1e30), axis=-1)
    return (shares @ v) @ weights["out"]


def loss(weights, x, labels):
    x = x + attend(weights, norm(x, weights["gain"]))
    h = jax.nn.gelu(norm(x, weights["gain"]) @ weights["up"])
    logits = x + h @ weights["down"]
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], axis=-1)
    return -jnp.mean(chosen)
