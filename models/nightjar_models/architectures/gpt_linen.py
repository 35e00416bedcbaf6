"""The GPT of `gpt.py` in Flax Linen, for the idiom `linen`.

In: the parameters that `gpt.py` draws, under Linen's names for a list of blocks. Out: the same logits.

Dimensions: B batch, T positions, D model width, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import jax
from flax import linen as nn
from jaxtyping import Array, Float, Int

from nightjar_models.architectures.layers import EPSILON
from nightjar_models.presets.sizes import GPTConfig


class Block(nn.Module):
    """Attention, then a feed-forward layer, each behind a norm and added to its input."""

    config: GPTConfig

    def setup(self) -> None:
        """The layers, by the names of `transformer.Block`."""
        self.attention_norm = nn.LayerNorm(epsilon=EPSILON)
        self.attention = nn.MultiHeadDotProductAttention(num_heads=self.config.heads)
        self.feed_forward_norm = nn.LayerNorm(epsilon=EPSILON)
        self.feed_forward = FeedForward(self.config)

    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        mask = nn.make_causal_mask(x[..., 0])
        x = x + self.attention(self.attention_norm(x), mask=mask)
        return x + self.feed_forward(self.feed_forward_norm(x))


class FeedForward(nn.Module):
    """Two linear maps with a GELU between them."""

    config: GPTConfig

    def setup(self) -> None:
        self.linear_in = nn.Dense(self.config.feed_forward)
        self.linear_out = nn.Dense(self.config.width)

    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        return self.linear_out(nn.gelu(self.linear_in(x)))


class GPT(nn.Module):
    """Embeddings, blocks, a last norm, and the logits by the table of the embedding."""

    config: GPTConfig

    def setup(self) -> None:
        """The layers, by the names of `gpt.GPT`."""
        V, T, D = self.config.vocabulary, self.config.length, self.config.width
        self.token_embedding = nn.Embed(V, D)
        self.position_embedding = self.param("position_embedding", nn.initializers.normal(0.02), (T, D))
        self.blocks = [Block(self.config) for _ in range(self.config.layers)]
        self.norm = nn.LayerNorm(epsilon=EPSILON)

    def __call__(self, tokens: Int[Array, "B T"]) -> Float[Array, "B T V"]:
        """Logits of the byte after each position."""
        x = self.token_embedding(tokens) + self.position_embedding[: tokens.shape[1]]
        for number, block in enumerate(self.blocks):
            with jax.named_scope(f"layers.{number}"):
                x = block(x)
        return self.token_embedding.attend(self.norm(x))


def rename(parameters: dict[str, Any]) -> dict[str, Any]:
    """Parameters of `gpt.GPT` under Linen's names: `blocks_0` for the first of the blocks."""
    others = {name: value for name, value in parameters.items() if name != "blocks"}
    return others | {f"blocks_{number}": block for number, block in parameters["blocks"].items()}


def name_back(parameters: dict[str, Any]) -> dict[str, Any]:
    """Undoes `rename`.

    >>> name_back(rename({"norm": 1, "blocks": {0: 2, 1: 3}}))
    {'norm': 1, 'blocks': {0: 2, 1: 3}}
    """
    others = {name: value for name, value in parameters.items() if not name.startswith("blocks_")}
    blocks = {int(name.removeprefix("blocks_")): value for name, value in parameters.items() if name not in others}
    return others | {"blocks": blocks}
