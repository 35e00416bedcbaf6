"""One layer of a plain transformer: pre-norm attention and a feed-forward layer, causal (GPT) or not (ViT).

In: a stream of positions. Out: the stream, with what the layer adds to it. `compute.layers` says who computes it: the
parameters are the same.

Dimensions: B batch, T positions, D model width, H heads, K width of a head, F feed-forward width.
"""

from __future__ import annotations

from collections.abc import Iterable

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from nightjar_models.architectures import te_block
from nightjar_models.architectures.layers import attend, feed_forward, is_for_one_cpu, is_small, layer_norm, multiply
from nightjar_models.architectures.precision import make_products
from nightjar_models.architectures.te_layers import BLOCK, FEED_FORWARD
from nightjar_models.parallel.sharding import Keys, parameter
from nightjar_models.presets.config import Compute
from nightjar_models.presets.sizes import GPTConfig, ViTConfig


class Block(nnx.Module):
    """Attention, then a feed-forward layer, each added to its input."""

    def __init__(self, config: GPTConfig | ViTConfig, rngs: Keys, *, causal: bool, compute: Compute) -> None:
        self.causal, self.how, self.layers = causal, compute.attention, compute.layers
        self.products = make_products(compute, te_block.PRODUCTS if compute.layers == BLOCK else 2)
        D, H, F = config.width, config.heads, config.feed_forward
        K, residual = D // H, (2 * config.layers) ** -0.5  # GPT-2: what is added to the stream shrinks with depth
        self.attention_norm = parameter(rngs, (D,), (None,), constant=1.0)
        self.qkv = parameter(rngs, (D, 3, H, K), ("width", None, "heads", None), deviation=D**-0.5)
        self.projection = parameter(rngs, (H, K, D), ("heads", None, "width"), deviation=residual * D**-0.5)
        self.feed_forward_norm = parameter(rngs, (D,), (None,), constant=1.0)
        self.w_in = parameter(rngs, (D, F), ("width", "feed_forward"), deviation=D**-0.5)
        self.b_in = parameter(rngs, (F,), ("feed_forward",), constant=0.0)
        self.w_out = parameter(rngs, (F, D), ("feed_forward", "width"), deviation=residual * F**-0.5)
        self.b_out = parameter(rngs, (D,), (None,), constant=0.0)

    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        """One layer of the stack."""
        norm, qkv, projection = self.attention_norm[...], self.qkv[...], self.projection[...]
        matrices = self.w_in[...], self.b_in[...], self.w_out[...], self.b_out[...]
        if self.layers == BLOCK:
            attention, behind = (norm, qkv, projection), (self.feed_forward_norm[...], *matrices)
            return te_block.block(x, attention, behind, causal=self.causal, how=self.how, products=self.products)
        x = x + self_attention(layer_norm(x, norm), qkv, projection, causal=self.causal, how=self.how)
        if self.layers == FEED_FORWARD:
            return x + te_block.feed_forward(x, self.feed_forward_norm[...], *matrices, products=self.products)
        h = layer_norm(x, self.feed_forward_norm[...])
        return x + feed_forward(h, *matrices, products=self.products)


def self_attention(
    x: Float[Array, "B T D"],
    qkv: Float[Array, "D 3 H K"],
    projection: Float[Array, "H K D"],
    *,
    causal: bool,
    how: str,
) -> Float[Array, "B T D"]:
    """Multi-head attention of positions among themselves; queries, keys and values come from one parameter."""
    q, k, v = project(x, qkv)
    return jnp.einsum("bhtk,hkd->btd", attend(q, k, v, causal=causal, how=how), projection)


def project(x: Float[Array, "B T D"], qkv: Float[Array, "D 3 H K"]) -> Iterable[Float[Array, "B H T K"]]:
    """Queries, keys and values of all heads, from one product.

    The product is split, whose gradient puts three parts side by side; taken one by one, each would be padded and then
    added. On a single CPU they lie side by side as the product's own columns, so that no copy turns the gradient
    (jaxlib 0.10.2: 0.95 of the time of a step of `gpt_tiny`, 0.94 of its CPU time).
    """
    (_, positions, width), (_, _, heads, size) = x.shape, qkv.shape
    if is_small(positions, positions, size) or not is_for_one_cpu():
        return (part[0] for part in jnp.split(jnp.einsum("btd,dchk->cbhtk", x, qkv), 3))
    columns = jnp.split(multiply(x, qkv.reshape(width, -1)), 3, axis=-1)
    return (part.reshape(*x.shape[:2], heads, size).swapaxes(1, 2) for part in columns)
