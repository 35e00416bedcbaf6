"""A causal decoder whose feed-forward layers are mixtures of experts, top to bottom.

In: bytes as integers. Out: one row of logits per position, over the byte that follows; and how unevenly the experts
were used.

Dimensions: B batch, T positions, D model width, F width of an expert, E experts, C places of an expert, V vocabulary;
N stretches of L tokens each, N * L = B * T: the tokens of a stretch compete for the same places.
Each parameter names its logical axes beside its initializer; `sharding.py` says over which mesh axis each is split.

Source: Jiang et al. 2024, "Mixtral of Experts" (attention as in Llama, weights normalised over the chosen experts);
Lepikhin et al. 2021, "GShard" (dispatch by einsum, capacity); Fedus et al. 2022, "Switch Transformers", equation 4
(balance). Unlike GShard: places are given by position first, so that no token depends on a later one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from nightjar_models.architectures.layers import cross_entropy, gated_feed_forward, look_up, multiply, rms_norm
from nightjar_models.architectures.llama import RotaryAttention
from nightjar_models.architectures.precision import make_products
from nightjar_models.architectures.stack import run_layers, stack_layers
from nightjar_models.parallel.sharding import Keys, parameter
from nightjar_models.presets.config import Compute
from nightjar_models.presets.sizes import MoEConfig


class MoE(nnx.Module):
    """Embedding, a stack of blocks, a last norm, and the logits of the next byte."""

    def __init__(self, config: MoEConfig, compute: Compute, rngs: Keys) -> None:
        self.layers, self.balance, self.compute = config.layers, config.balance, compute
        V, D = config.vocabulary, config.width
        self.token_embedding = parameter(rngs, (V, D), ("vocabulary", None), deviation=0.02)
        self.blocks = stack_layers([Block(config, compute, rngs) for _ in range(config.layers)], compute)
        self.norm = parameter(rngs, (D,), (None,), constant=1.0)
        self.unembedding = parameter(rngs, (D, V), ("width", "vocabulary"), deviation=D**-0.5)

    def __call__(self, tokens: Int[Array, "B T"]) -> tuple[Float[Array, "B T V"], Float[Array, ""]]:
        """Logits of the byte after each position, and the unevenness: 1 where all experts are used alike."""
        x = look_up(self.token_embedding[...], tokens)
        x, uneven = run_layers(self.blocks, (x, jnp.zeros(len(x))), compute=self.compute)
        x = rms_norm(x, self.norm[...], self.compute.norm)
        return multiply(x, self.unembedding[...]), uneven.mean() / self.layers


class Block(nnx.Module):
    """Attention, then a mixture of experts, each added to its input."""

    def __init__(self, config: MoEConfig, compute: Compute, rngs: Keys) -> None:
        D, F, E, residual = config.width, config.feed_forward, config.experts, (2 * config.layers) ** -0.5
        self.chosen, self.stretch, self.places = config.chosen, config.routing_length, count_places(config)
        self.norm_how = compute.norm
        self.products = make_products(compute, 3)
        self.attention = RotaryAttention(config, compute, rngs)
        self.norm = parameter(rngs, (D,), (None,), constant=1.0)
        self.router = parameter(rngs, (D, E), (None, None), deviation=D**-0.5)
        self.w_gate = parameter(rngs, (E, D, F), ("experts", "width", "feed_forward"), deviation=D**-0.5)
        self.w_in = parameter(rngs, (E, D, F), ("experts", "width", "feed_forward"), deviation=D**-0.5)
        self.w_out = parameter(rngs, (E, F, D), ("experts", "feed_forward", "width"), deviation=residual * F**-0.5)

    def __call__(
        self, carry: tuple[Float[Array, "B T D"], Float[Array, " B"]]
    ) -> tuple[Float[Array, "B T D"], Float[Array, " B"]]:
        """One layer of the stack; adds this layer's unevenness on each example to that of the layers before."""
        x, uneven = carry
        x = x + self.attention(x)
        h = rms_norm(x, self.norm[...], self.norm_how).reshape(-1, self.stretch, x.shape[-1])
        shares, used = assign(h.astype(jnp.float32) @ self.router[...].astype(jnp.float32), self.chosen, self.places)
        sent = jnp.einsum("nlec,nld->encd", (shares > 0).astype(h.dtype), h)
        matrices = self.w_gate[...], self.w_in[...], self.w_out[...]
        done = gated_feed_forward(sent, *matrices, products=self.products)
        added = jnp.einsum("nlec,encd->nld", shares.astype(h.dtype), done)
        return x + added.reshape(x.shape), uneven + used.reshape(len(x), -1).mean(axis=1)


def count_places(config: MoEConfig) -> int:
    """How many tokens of a stretch one expert takes."""
    return math.ceil(config.capacity * config.routing_length * config.chosen / config.experts)


def assign(
    logits: Float[Array, "N L E"], chosen: int, places: int
) -> tuple[Float[Array, "N L E C"], Float[Array, " N"]]:
    """Who works on which token, at which of its places, and with what weight.

    Args:
        logits: of the router.
        chosen: how many experts a token wants.
        places: how many tokens of a stretch an expert takes; the earliest ones get them, the others pass it by.

    Returns:
        weights, zero but for the chosen experts' places; and of each stretch `E * sum(share of tokens * mean
        probability)` over the experts, 1 where both are even.
    """
    count = logits.shape[-1]
    probability = jax.nn.softmax(logits, axis=-1)
    weights, experts = jax.lax.top_k(probability, chosen)
    weights = weights / weights.sum(axis=-1, keepdims=True)
    wanted = jax.nn.one_hot(experts, count)  # N L chosen E
    queue = wanted.reshape(wanted.shape[0], -1, count)
    before = (jnp.cumsum(queue, axis=1) - queue).reshape(wanted.shape)
    place = jax.nn.one_hot(
        (before * wanted).sum(axis=-1).astype(jnp.int32), places
    )  # N L chosen C; zeros where all places are taken
    shares = jnp.einsum("nlk,nlke,nlkc->nlec", weights, wanted, place)
    even = (wanted.mean(axis=(1, 2)) * probability.mean(axis=1)).sum(axis=-1)
    return shares, count * even


def measure(model: MoE, batch: Mapping[str, Int[Array, "B T+1"]]) -> dict[str, Float[Array, ""]]:
    """As `loss` the mean negative log likelihood of each next byte, in nats, plus `balance` times the unevenness."""
    tokens = batch["tokens"]
    logits, uneven = model(tokens[:, :-1])
    return {"loss": cross_entropy(logits, tokens[:, 1:]).mean() + model.balance * uneven}
