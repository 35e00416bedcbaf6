"""A causal decoder whose feed-forward layers are mixtures of experts, top to bottom.

In: bytes as integers. Out: one row of logits per position, over the byte that follows; and how unevenly the experts
were used.

Dimensions: B batch, T positions, D model width, F width of an expert, E experts, X of them that a token wants,
C places of an expert, R tokens times X, V vocabulary;
N stretches of L tokens each, N * L = B * T: the tokens of a stretch compete for the same places.
Each initializer names the mesh axes over which its parameter is split; experts' parameters are split over `expert` too.

Source: Jiang et al. 2024, "Mixtral of Experts" (attention as in Llama, weights normalised over the chosen experts);
Lepikhin et al. 2021, "GShard" (dispatch by einsum, capacity); Fedus et al. 2022, "Switch Transformers", equation 4
(balance). Unlike GShard: places are given by position first, so that no token depends on a later one. By
`compute.experts=ragged` as Gale et al. 2023, "MegaBlocks": tokens are sorted by expert and none is passed by.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from nightjar_models.architectures.layers import (
    MATRIX,
    TABLE,
    GatedFeedForward,
    cross_entropy,
    make_embed,
    make_rms_norm,
    make_unembedding,
)
from nightjar_models.architectures.llama import make_rotary_attention
from nightjar_models.architectures.stack import run_layers, stack_layers
from nightjar_models.presets.config import Compute
from nightjar_models.presets.sizes import MoEConfig


class MoE(nnx.Module):
    """Embedding, a stack of blocks, a last norm, and the logits of the next byte."""

    def __init__(self, config: MoEConfig, compute: Compute, *, rngs: nnx.Rngs) -> None:
        self.layers, self.balance, self.compute = config.layers, config.balance, compute
        V, D = config.vocabulary, config.width
        self.token_embedding = make_embed(V, D, TABLE, compute, rngs)
        self.blocks = stack_layers(lambda rngs: Block(config, compute, rngs=rngs), config.layers, compute, rngs)
        self.norm = make_rms_norm(D, compute, rngs)
        self.unembedding = make_unembedding(D, V, compute, rngs)

    def __call__(self, tokens: Int[Array, "B T"]) -> tuple[Float[Array, "B T V"], Float[Array, " B"]]:
        """Logits of the byte after each position, and the unevenness: 1 if all experts are used alike."""
        x = self.token_embedding(tokens)
        x, uneven = run_layers(self.blocks, (x, jnp.zeros(len(x))), compute=self.compute)
        return self.unembedding(self.norm(x)), uneven / self.layers


class Block(nnx.Module):
    """Attention, then a mixture of experts, each behind a norm and added to its input."""

    def __init__(self, config: MoEConfig, compute: Compute, *, rngs: nnx.Rngs) -> None:
        D, F, E = config.width, config.feed_forward, config.experts
        self.chosen, self.stretch, self.places = config.chosen, config.routing_length, count_places(config)
        self.how = compute.experts
        self.attention_norm = make_rms_norm(D, compute, rngs)
        self.attention = make_rotary_attention(config, compute, rngs)
        self.feed_forward_norm = make_rms_norm(D, compute, rngs)
        self.router = nnx.Linear(D, E, use_bias=False, dtype=jnp.float32, kernel_init=MATRIX, rngs=rngs)

        @nnx.split_rngs(splits=E)
        @nnx.vmap(transform_metadata={nnx.PARTITION_NAME: "expert"})
        def make_experts(rngs: nnx.Rngs) -> GatedFeedForward:
            return GatedFeedForward(D, F, config.layers, compute, rngs=rngs)

        self.experts = make_experts(rngs)

    def __call__(
        self, carry: tuple[Float[Array, "B T D"], Float[Array, " B"]]
    ) -> tuple[Float[Array, "B T D"], Float[Array, " B"]]:
        """One layer of the stack; adds this layer's unevenness on each example to the sum of the layers before."""
        x, uneven = carry
        x = x + self.attention(self.attention_norm(x), is_causal=True)
        h = self.feed_forward_norm(x).reshape(-1, self.stretch, x.shape[-1])
        weights, experts, used = choose(self.router(h), self.chosen)
        apply = self.apply_sorted if self.how == "ragged" else self.apply_by_place
        added = apply(h, weights, experts)
        return x + added.reshape(x.shape), uneven + used.reshape(len(x), -1).mean(axis=1)

    def apply_by_place(
        self, h: Float[Array, "N L D"], weights: Float[Array, "N L X"], experts: Int[Array, "N L X"]
    ) -> Float[Array, "N L D"]:
        """Sends each token to its places, and back; every expert has the same number of them."""
        shares = assign(weights, experts, self.router.out_features, self.places)
        sent = jnp.einsum("nlec,nld->encd", (shares > 0).astype(h.dtype), h)
        done = nnx.vmap(lambda expert, h: expert(h))(self.experts, sent)
        return jnp.einsum("nlec,encd->nld", shares.astype(h.dtype), done)

    def apply_sorted(
        self, h: Float[Array, "N L D"], weights: Float[Array, "N L X"], experts: Int[Array, "N L X"]
    ) -> Float[Array, "N L D"]:
        """Sorts the tokens by expert, of whom each takes as many as want it: products by `jax.lax.ragged_dot`."""
        chosen = experts.reshape(-1)
        order = jnp.argsort(chosen)
        counts = jnp.bincount(chosen, length=self.router.out_features)
        tokens = h.reshape(-1, h.shape[-1])

        def multiply(rows: Float[Array, "R D"], layer: nnx.Linear) -> Float[Array, "R F"]:
            return jax.lax.ragged_dot(rows, layer.kernel[...].astype(rows.dtype), counts)

        rows = tokens[order // self.chosen]
        gated = self.experts.activation(multiply(rows, self.experts.gate)) * multiply(rows, self.experts.linear_in)
        done = multiply(gated, self.experts.linear_out) * weights.reshape(-1)[order][:, None].astype(h.dtype)
        return jnp.zeros_like(tokens).at[order // self.chosen].add(done).reshape(h.shape)


def count_places(config: MoEConfig) -> int:
    """How many tokens of a stretch one expert takes."""
    return math.ceil(config.capacity * config.routing_length * config.chosen / config.experts)


def choose(
    logits: Float[Array, "N L E"], chosen: int
) -> tuple[Float[Array, "N L X"], Int[Array, "N L X"], Float[Array, " N"]]:
    """Whom each token wants, and how much.

    Returns:
        weights of the chosen experts, whose sum is 1; the experts; and of each stretch `E * sum(share of tokens * mean
        probability)` over the experts, 1 if both are even.
    """
    probability = jax.nn.softmax(logits, axis=-1)
    weights, experts = jax.lax.top_k(probability, chosen)
    wanted = jax.nn.one_hot(experts, logits.shape[-1])
    even = (wanted.mean(axis=(1, 2)) * probability.mean(axis=1)).sum(axis=-1)
    return weights / weights.sum(axis=-1, keepdims=True), experts, logits.shape[-1] * even


def assign(
    weights: Float[Array, "N L X"], experts: Int[Array, "N L X"], count: int, places: int
) -> Float[Array, "N L E C"]:
    """The weight of each token at each place of each expert: zero but for the chosen experts' places.

    Args:
        weights: of the experts that a token wants.
        places: tokens of a stretch that an expert takes; the earliest ones get them, the others pass it by.
    """
    wanted = jax.nn.one_hot(experts, count)  # N L X E
    queue = wanted.reshape(wanted.shape[0], -1, count)
    before = (jnp.cumsum(queue, axis=1) - queue).reshape(wanted.shape)
    # N L X C; zeros if all places are taken
    place = jax.nn.one_hot((before * wanted).sum(axis=-1).astype(jnp.int32), places)
    return jnp.einsum("nlx,nlxe,nlxc->nlec", weights, wanted, place)


def measure(model: MoE, batch: Mapping[str, Int[Array, "B T+1"]]) -> dict[str, Float[Array, "B T"]]:
    """As `loss` the negative log likelihood of each next byte, in nats, plus `balance` times the unevenness."""
    tokens = batch["tokens"]
    logits, uneven = model(tokens[:, :-1])
    return {"loss": cross_entropy(logits, tokens[:, 1:]) + model.balance * uneven[:, None]}
