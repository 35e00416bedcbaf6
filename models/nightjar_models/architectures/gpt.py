"""A causal decoder (pre-norm transformer), top to bottom.

In: bytes as integers. Out: one row of logits per position, over the byte that follows.

Dimensions: B batch, T positions, D model width, V vocabulary.
Each initializer names the mesh axes over which its parameter is split.

Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners" (GPT-2): learned positions, pre-norm,
GELU, biases, one table for embedding and logits; Brown et al. 2020 (GPT-3) for the sizes.
"""

from __future__ import annotations

from collections.abc import Mapping

from flax import nnx
from jaxtyping import Array, Float, Int

from nightjar_models.architectures.layers import EPSILON, TABLE, cross_entropy, make_embed
from nightjar_models.architectures.stack import run_layers, stack_layers
from nightjar_models.architectures.transformer import Block
from nightjar_models.presets.config import DTYPES, Compute
from nightjar_models.presets.sizes import GPTConfig


class GPT(nnx.Module):
    """Embeddings, a stack of blocks, a last norm, and the logits of the next byte."""

    def __init__(self, config: GPTConfig, compute: Compute, *, rngs: nnx.Rngs) -> None:
        self.compute = compute
        V, T, D = config.vocabulary, config.length, config.width
        self.token_embedding = make_embed(V, D, TABLE, compute, rngs)
        self.position_embedding = nnx.Param(TABLE(rngs.params(), (T, D)))
        self.dropout = nnx.Dropout(config.dropout, rngs=rngs if config.dropout else None)
        self.blocks = stack_layers(
            lambda rngs: Block(config, compute, causal=True, rngs=rngs), config.layers, compute, rngs
        )
        self.norm = nnx.LayerNorm(D, epsilon=EPSILON, dtype=DTYPES[compute.dtype], rngs=rngs)

    def __call__(self, tokens: Int[Array, "B T"]) -> Float[Array, "B T V"]:
        """Logits of the byte after each position."""
        x = self.token_embedding(tokens)
        x = self.dropout(x + self.position_embedding[: tokens.shape[1]].astype(x.dtype))
        x = run_layers(self.blocks, x, compute=self.compute)
        return self.token_embedding.attend(self.norm(x))


def measure(model: GPT, batch: Mapping[str, Int[Array, "B T+1"]]) -> dict[str, Float[Array, "B T"]]:
    """The negative log likelihood of each next byte, in nats, as `loss`."""
    tokens = batch["tokens"]
    return {"loss": cross_entropy(model(tokens[:, :-1]), tokens[:, 1:])}
