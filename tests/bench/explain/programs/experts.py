"""A router and four experts with a capacity, and the loss that balances them."""
# mypy: ignore-errors

import jax
import jax.numpy as jnp


def arguments():
    keys = jax.random.split(jax.random.key(4), 3)
    weights = {"router": jax.random.normal(keys[0], (16, 4)), "experts": jax.random.normal(keys[1], (4, 16, 16)) / 4}
    return weights, jax.random.normal(keys[2], (40, 16))


def route(weights, x):
    shares = jax.nn.softmax(x @ weights["router"])
    best, chosen = jnp.max(shares, axis=-1), jnp.argmax(shares, axis=-1)
    sent = jax.nn.one_hot(chosen, 4)
    place = jnp.cumsum(sent, axis=0) * sent
    kept = sent * (place <= 12)
    return shares, best, kept


def loss(weights, x):
    shares, best, kept = route(weights, x)
    given = jnp.einsum("te,td->etd", kept, x)
    made = jnp.tanh(jnp.einsum("etd,edf->etf", given, weights["experts"]))
    joined = jnp.einsum("etf,te->tf", made, kept) * best[:, None]
    balance = jnp.sum(kept.mean(0) * shares.mean(0)) * 4
    return jnp.mean((joined - x) ** 2) + 0.01 * balance
