"""A causal decoder (pre-norm transformer), top to bottom.

In: bytes as integers. Out: one row of logits per position, over the byte that follows.

Dimensions: B batch, T positions, D model width, V vocabulary.
Each parameter names its logical axes beside its initializer; `sharding.py` says over which mesh axis each is split.

Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners" (GPT-2): learned positions, pre-norm,
GELU; Brown et al. 2020 (GPT-3) for the sizes. Unlike both: no dropout, no biases in attention, an unembedding of its
own.
"""

from __future__ import annotations

from collections.abc import Mapping

from flax import nnx
from jaxtyping import Array, Float, Int

from nightjar_models.architectures.layers import cross_entropy, layer_norm, look_up, multiply
from nightjar_models.architectures.stack import run_layers, stack_layers
from nightjar_models.architectures.transformer import Block
from nightjar_models.parallel.sharding import Keys, parameter
from nightjar_models.presets.config import Compute
from nightjar_models.presets.sizes import GPTConfig


class GPT(nnx.Module):
    """Embeddings, a stack of blocks, a last norm, and the logits of the next byte."""

    def __init__(self, config: GPTConfig, compute: Compute, rngs: Keys) -> None:
        self.compute = compute
        V, T, D = config.vocabulary, config.length, config.width
        # Looked up by batches that are split over fsdp: a table split over fsdp too would be gathered at each step.
        self.token_embedding = parameter(rngs, (V, D), ("vocabulary", None), deviation=0.02)
        self.position_embedding = parameter(rngs, (T, D), (None, None), deviation=0.02)
        blocks = [Block(config, rngs, causal=True, compute=compute) for _ in range(config.layers)]
        self.blocks = stack_layers(blocks, compute)
        self.norm = parameter(rngs, (D,), (None,), constant=1.0)
        self.unembedding = parameter(rngs, (D, V), ("width", "vocabulary"), deviation=D**-0.5)

    def __call__(self, tokens: Int[Array, "B T"]) -> Float[Array, "B T V"]:
        """Logits of the byte after each position."""
        x = look_up(self.token_embedding[...], tokens) + self.position_embedding[...][: tokens.shape[1]]
        x = run_layers(self.blocks, x, compute=self.compute)
        return multiply(layer_norm(x, self.norm[...]), self.unembedding[...])


def measure(model: GPT, batch: Mapping[str, Int[Array, "B T+1"]]) -> dict[str, Float[Array, ""]]:
    """The mean negative log likelihood of each next byte, in nats, as `loss`."""
    tokens = batch["tokens"]
    return {"loss": cross_entropy(model(tokens[:, :-1]), tokens[:, 1:]).mean()}
