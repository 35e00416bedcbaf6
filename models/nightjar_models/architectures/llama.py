"""A causal decoder with rotary positions and gated feed-forward layers, top to bottom.

In: bytes as integers. Out: one row of logits per position, over the byte that follows.

Dimensions: B batch, T positions, D model width, H heads, G heads of keys and values, V vocabulary.
Each initializer names the mesh axes over which its parameter is split.

Source: Touvron et al. 2023, "Llama 2"; Grattafiori et al. 2024, "The Llama 3 Herd of Models" (rope_base 500,000,
vocabulary 128,256). Unlike both: additions to the stream shrink with depth.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

from flax import nnx
from jaxtyping import Array, Float, Int

from nightjar_models.architectures import te_block
from nightjar_models.architectures.layers import (
    MATRIX,
    TABLE,
    GatedFeedForward,
    cross_entropy,
    make_attention,
    make_embed,
    make_rms_norm,
    make_unembedding,
    residual,
    rotate,
)
from nightjar_models.architectures.precision import make_te_products
from nightjar_models.architectures.stack import run_layers, stack_layers
from nightjar_models.architectures.te_layers import BLOCK, FEED_FORWARD
from nightjar_models.parallel.sharding import partitioned
from nightjar_models.presets.config import DTYPES, Compute
from nightjar_models.presets.sizes import LlamaConfig, MoEConfig


class Llama(nnx.Module):
    """Embedding, a stack of blocks, a last norm, and the logits of the next byte."""

    def __init__(self, config: LlamaConfig, compute: Compute, *, rngs: nnx.Rngs) -> None:
        self.compute = compute
        V, D = config.vocabulary, config.width
        self.token_embedding = make_embed(V, D, TABLE, compute, rngs)
        self.blocks = stack_layers(lambda rngs: Block(config, compute, rngs=rngs), config.layers, compute, rngs)
        self.norm = make_rms_norm(D, compute, rngs)
        self.unembedding = make_unembedding(D, V, compute, rngs)

    def __call__(self, tokens: Int[Array, "B T"]) -> Float[Array, "B T V"]:
        """Logits of the byte after each position."""
        x = run_layers(self.blocks, self.token_embedding(tokens), compute=self.compute)
        return self.unembedding(self.norm(x))


class Block(nnx.Module):
    """Attention, then a gated feed-forward layer, each behind a norm and added to its input."""

    causal = True

    def __init__(self, config: LlamaConfig, compute: Compute, *, rngs: nnx.Rngs) -> None:
        self.how, self.layers, self.rope_base = compute.attention, compute.layers, config.rope_base
        self.attention_norm = make_rms_norm(config.width, compute, rngs)
        self.attention = make_rotary_attention(config, compute, rngs)
        self.feed_forward_norm = make_rms_norm(config.width, compute, rngs)
        self.feed_forward = GatedFeedForward(config.width, config.feed_forward, config.layers, compute, rngs=rngs)
        self.te_products = make_te_products(compute, grouped=config.groups != config.heads)

    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        if self.layers == BLOCK:
            return te_block.whole(self, x)
        x = x + self.attention(self.attention_norm(x), is_causal=True)
        if self.layers == FEED_FORWARD:
            return x + te_block.feed_forward(self, x)
        return x + self.feed_forward(self.feed_forward_norm(x))


def make_rotary_attention(config: LlamaConfig | MoEConfig, compute: Compute, rngs: nnx.Rngs) -> nnx.MultiHeadAttention:
    """Attention with grouped heads, whose positions are rotations of queries and keys."""
    return nnx.MultiHeadAttention(
        config.heads,
        config.width,
        num_kv_heads=config.groups,
        use_bias=False,
        dtype=DTYPES[compute.dtype],
        decode=False,
        kernel_init=partitioned(MATRIX, ("fsdp", "tensor", None)),
        out_kernel_init=partitioned(residual(config.layers), ("tensor", None, "fsdp")),
        attention_fn=make_attention(compute, functools.partial(rotate, base=config.rope_base)),
        rngs=rngs,
    )


def measure(model: Llama, batch: Mapping[str, Int[Array, "B T+1"]]) -> dict[str, Float[Array, "B T"]]:
    """The negative log likelihood of each next byte, in nats, as `loss`."""
    tokens = batch["tokens"]
    return {"loss": cross_entropy(model(tokens[:, :-1]), tokens[:, 1:])}
