"""A causal decoder with rotary positions and gated feed-forward layers, top to bottom.

In: bytes as integers. Out: one row of logits per position, over the byte that follows.

Dimensions: B batch, T positions, D model width, H heads, G heads of keys and values, K width of a head,
F feed-forward width, V vocabulary.
Each parameter names its logical axes beside its initializer; `sharding.py` says over which mesh axis each is split.

Source: Touvron et al. 2023, "Llama 2"; Grattafiori et al. 2024, "The Llama 3 Herd of Models" (rope_base 500,000,
vocabulary 128,256). Unlike both: what is added to the stream shrinks with depth.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from nightjar_models.architectures.layers import (
    attend,
    cross_entropy,
    gated_feed_forward,
    look_up,
    multiply,
    rms_norm,
    rotate,
)
from nightjar_models.architectures.precision import make_products
from nightjar_models.architectures.stack import run_layers, stack_layers
from nightjar_models.parallel.sharding import Keys, parameter
from nightjar_models.presets.config import Compute
from nightjar_models.presets.sizes import LlamaConfig, MoEConfig


class Llama(nnx.Module):
    """Embedding, a stack of blocks, a last norm, and the logits of the next byte."""

    def __init__(self, config: LlamaConfig, compute: Compute, rngs: Keys) -> None:
        self.compute = compute
        V, D = config.vocabulary, config.width
        self.token_embedding = parameter(rngs, (V, D), ("vocabulary", None), deviation=0.02)
        self.blocks = stack_layers([Block(config, compute, rngs) for _ in range(config.layers)], compute)
        self.norm = parameter(rngs, (D,), (None,), constant=1.0)
        self.unembedding = parameter(rngs, (D, V), ("width", "vocabulary"), deviation=D**-0.5)

    def __call__(self, tokens: Int[Array, "B T"]) -> Float[Array, "B T V"]:
        """Logits of the byte after each position."""
        x = run_layers(self.blocks, look_up(self.token_embedding[...], tokens), compute=self.compute)
        return multiply(rms_norm(x, self.norm[...], self.compute.norm), self.unembedding[...])


class Block(nnx.Module):
    """Attention, then a gated feed-forward layer, each added to its input."""

    def __init__(self, config: LlamaConfig, compute: Compute, rngs: Keys) -> None:
        D, F, residual = config.width, config.feed_forward, (2 * config.layers) ** -0.5
        self.norm_how = compute.norm
        self.products = make_products(compute, 3)
        self.attention = RotaryAttention(config, compute, rngs)
        self.norm = parameter(rngs, (D,), (None,), constant=1.0)
        self.w_gate = parameter(rngs, (D, F), ("width", "feed_forward"), deviation=D**-0.5)
        self.w_in = parameter(rngs, (D, F), ("width", "feed_forward"), deviation=D**-0.5)
        self.w_out = parameter(rngs, (F, D), ("feed_forward", "width"), deviation=residual * F**-0.5)

    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        """One layer of the stack."""
        x = x + self.attention(x)
        h = rms_norm(x, self.norm[...], self.norm_how)
        return x + gated_feed_forward(h, self.w_gate[...], self.w_in[...], self.w_out[...], products=self.products)


class RotaryAttention(nnx.Module):
    """Causal attention behind a norm: grouped heads, positions as rotations of queries and keys."""

    def __init__(self, config: LlamaConfig | MoEConfig, compute: Compute, rngs: Keys) -> None:
        self.how, self.norm_how, self.base = compute.attention, compute.norm, config.rope_base
        D, H, G = config.width, config.heads, config.groups
        K, residual = D // H, (2 * config.layers) ** -0.5
        self.norm = parameter(rngs, (D,), (None,), constant=1.0)
        self.q = parameter(rngs, (D, H, K), ("width", "heads", None), deviation=D**-0.5)
        self.k = parameter(rngs, (D, G, K), ("width", "heads", None), deviation=D**-0.5)
        self.v = parameter(rngs, (D, G, K), ("width", "heads", None), deviation=D**-0.5)
        self.projection = parameter(rngs, (H, K, D), ("heads", None, "width"), deviation=residual * D**-0.5)

    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        """What is added to the stream."""
        h = rms_norm(x, self.norm[...], self.norm_how)
        q, k, v = (jnp.einsum("btd,dhk->bhtk", h, weight[...]) for weight in (self.q, self.k, self.v))
        mixed = attend(rotate(q, self.base), rotate(k, self.base), v, causal=True, how=self.how)
        return jnp.einsum("bhtk,hkd->btd", mixed, self.projection[...])


def measure(model: Llama, batch: Mapping[str, Int[Array, "B T+1"]]) -> dict[str, Float[Array, ""]]:
    """The mean negative log likelihood of each next byte, in nats, as `loss`."""
    tokens = batch["tokens"]
    return {"loss": cross_entropy(model(tokens[:, :-1]), tokens[:, 1:]).mean()}
