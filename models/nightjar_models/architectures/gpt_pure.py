"""The GPT of `gpt.py` without a library of layers, for the idioms `pure` and `shard_map`.

In: the parameters that `gpt.py` draws, as nested dictionaries. Out: the same logits, by `jax.numpy` alone.

Dimensions: B batch, T positions, D model width, H heads, K width of a head, F feed-forward width, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from nightjar_models.architectures.layers import EPSILON

Parameters = dict[Any, Any]


def apply(parameters: Parameters, tokens: Int[Array, "B T"]) -> Float[Array, "B T V"]:
    """Logits of the byte after each position."""
    table = parameters["token_embedding"]["embedding"]
    x = table[tokens] + parameters["position_embedding"][: tokens.shape[1]]
    for number in range(len(parameters["blocks"])):
        with jax.named_scope(f"layers.{number}"):
            x = block(parameters["blocks"][number], x)
    logits: Array = layer_norm(parameters["norm"], x) @ table.T
    return logits


def block(parameters: Parameters, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
    """Attention, then a feed-forward layer, each behind a norm and added to its input."""
    x = x + attention(parameters["attention"], layer_norm(parameters["attention_norm"], x))
    h = layer_norm(parameters["feed_forward_norm"], x)
    into, out = parameters["feed_forward"]["linear_in"], parameters["feed_forward"]["linear_out"]
    added: Array = jax.nn.gelu(h @ into["kernel"] + into["bias"]) @ out["kernel"] + out["bias"]
    return x + added


def attention(parameters: Parameters, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
    """Causal attention of all heads."""

    def project(name: str) -> Float[Array, "B T H K"]:
        part = parameters[name]
        heads: Array = jnp.einsum("btd,dhk->bthk", x, part["kernel"]) + part["bias"]
        return heads

    query, key, value = project("query"), project("key"), project("value")
    scores = jnp.einsum("bthk,bshk->bhts", query, key) / jnp.sqrt(query.shape[-1])
    seen = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=-1)
    mixed = jnp.einsum("bhts,bshk->bthk", weights, value)
    out = parameters["out"]
    added: Array = jnp.einsum("bthk,hkd->btd", mixed, out["kernel"]) + out["bias"]
    return added


def layer_norm(parameters: Parameters, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
    """Zero mean and unit variance over the width, then a learned scale and bias."""
    y = x - jnp.mean(x, axis=-1, keepdims=True)
    y = y * jax.lax.rsqrt(jnp.mean(jnp.square(y), axis=-1, keepdims=True) + EPSILON)
    scaled: Array = y * parameters["scale"] + parameters["bias"]
    return scaled
