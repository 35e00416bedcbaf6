"""The pre-norm block that GPT, ViT and the U-Net's text encoder share.

In: a stream. Out: the stream plus the results of attention and a feed-forward layer.

Dimensions: B batch, T positions, D model width, H heads, K width of a head, F feed-forward width.

Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners" (GPT-2). Unlike it: matrices start
with a deviation of 1/sqrt(fan-in) and not of 0.02, which suits models of any width.
"""

from __future__ import annotations

from flax import nnx
from jaxtyping import Array, Float

from nightjar_models.architectures import te_block
from nightjar_models.architectures.layers import EPSILON, MATRIX, FeedForward, make_attention, residual
from nightjar_models.architectures.precision import make_te_products
from nightjar_models.architectures.te_layers import BLOCK, FEED_FORWARD
from nightjar_models.parallel.sharding import partitioned
from nightjar_models.presets.config import DTYPES, Compute
from nightjar_models.presets.sizes import GPTConfig, ViTConfig


class Block(nnx.Module):
    """Attention, then a feed-forward layer, each behind a norm, thinned by dropout and added to its input."""

    def __init__(self, config: GPTConfig | ViTConfig, compute: Compute, *, causal: bool, rngs: nnx.Rngs) -> None:
        self.causal, self.how, self.layers, self.rope_base = causal, compute.attention, compute.layers, None
        D, H, dtype, zeros = config.width, config.heads, DTYPES[compute.dtype], nnx.initializers.zeros_init()
        self.attention_norm = nnx.LayerNorm(D, epsilon=EPSILON, dtype=dtype, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(
            H,
            D,
            dtype=dtype,
            decode=False,
            kernel_init=partitioned(MATRIX, ("fsdp", "tensor", None)),
            bias_init=partitioned(zeros, ("tensor", None)),
            out_kernel_init=partitioned(residual(config.layers), ("tensor", None, "fsdp")),
            out_bias_init=zeros,
            attention_fn=make_attention(compute),
            rngs=rngs,
        )
        self.feed_forward_norm = nnx.LayerNorm(D, epsilon=EPSILON, dtype=dtype, rngs=rngs)
        self.feed_forward = FeedForward(D, config.feed_forward, config.layers, compute, rngs=rngs)
        self.dropout = nnx.Dropout(config.dropout, rngs=rngs if config.dropout else None)
        self.te_products = make_te_products(compute)

    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        """One layer of the stack."""
        if self.layers == BLOCK:
            return te_block.whole(self, x)
        x = x + self.dropout(self.attention(self.attention_norm(x), is_causal=self.causal))
        if self.layers == FEED_FORWARD:
            return x + te_block.feed_forward(self, x)
        return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))
