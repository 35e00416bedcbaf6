"""How likely is the next byte? A causal decoder (pre-norm transformer), top to bottom.

In: bytes as integers. Out: one row of logits per position, over the byte that follows.

Dimensions: B batch, T positions, D model width, H heads, K width of a head, F feed-forward width, V vocabulary.
Each parameter names its logical axes beside its initializer; `sharding.py` says over which mesh axis each is split.

Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners" (GPT-2): learned positions, pre-norm,
GELU. Unlike GPT-2: no dropout, no biases in attention, an unembedding of its own.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jaxtyping import Array, Float, Int

from nightjar_models.config import GPTConfig
from nightjar_models.sharding import parameter


class GPT(nnx.Module):
    """Embeddings, a stack of blocks, a last norm, and the logits of the next byte."""

    def __init__(self, config: GPTConfig, rngs: nnx.Rngs) -> None:
        V, T, D = config.vocabulary, config.length, config.width
        # Looked up by batches that are split over fsdp: a table split over fsdp too would be gathered at each step.
        self.token_embedding = parameter(rngs, (V, D), ("vocabulary", None), deviation=0.02)
        self.position_embedding = parameter(rngs, (T, D), (None, None), deviation=0.02)
        self.blocks = nnx.List([Block(config, rngs) for _ in range(config.layers)])
        self.norm = parameter(rngs, (D,), (None,), constant=1.0)
        self.unembedding = parameter(rngs, (D, V), ("width", "vocabulary"), deviation=D**-0.5)

    def __call__(self, tokens: Int[Array, "B T"]) -> Float[Array, "B T V"]:
        """Logits of the byte after each position."""
        x = self.token_embedding[...][tokens] + self.position_embedding[...][: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return layer_norm(x, self.norm[...]) @ self.unembedding[...]


class Block(nnx.Module):
    """Attention, then a feed-forward layer, each added to its input."""

    def __init__(self, config: GPTConfig, rngs: nnx.Rngs) -> None:
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
        x = x + causal_attention(layer_norm(x, self.attention_norm[...]), self.qkv[...], self.projection[...])
        h = layer_norm(x, self.feed_forward_norm[...])
        return x + feed_forward(h, self.w_in[...], self.b_in[...], self.w_out[...], self.b_out[...])


def layer_norm(x: Float[Array, "B T D"], scale: Float[Array, " D"]) -> Float[Array, "B T D"]:
    """Zero mean and unit variance over the width, then a learned scale (Ba et al. 2016)."""
    x = x - x.mean(axis=-1, keepdims=True)
    return x * jax.lax.rsqrt((x * x).mean(axis=-1, keepdims=True) + 1e-5) * scale


def causal_attention(
    x: Float[Array, "B T D"], qkv: Float[Array, "D 3 H K"], projection: Float[Array, "H K D"]
) -> Float[Array, "B T D"]:
    """Multi-head attention in which no position sees a later one.

    Written as einsums: on XLA:CPU `jax.nn.dot_product_attention` takes 1.9 times as long, forward and backward.
    """
    q, k, v = jnp.einsum("btd,dchk->cbhtk", x, qkv)
    scores = jnp.einsum("bhtk,bhsk->bhts", q, k) * q.shape[-1] ** -0.5
    mask = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    weights = jax.nn.softmax(jnp.where(mask, scores, -1e30), axis=-1)
    return jnp.einsum("bhtk,hkd->btd", jnp.einsum("bhts,bhsk->bhtk", weights, v), projection)


def feed_forward(
    x: Float[Array, "B T D"],
    w_in: Float[Array, "D F"],
    b_in: Float[Array, " F"],
    w_out: Float[Array, "F D"],
    b_out: Float[Array, " D"],
) -> Float[Array, "B T D"]:
    """Two linear maps with a GELU (tanh form) between them, position by position."""
    return jax.nn.gelu(x @ w_in + b_in) @ w_out + b_out


def measure(model: GPT, batch: Mapping[str, Int[Array, "B T+1"]]) -> dict[str, Float[Array, ""]]:
    """The mean negative log likelihood of each next byte, in nats, as `loss`."""
    tokens = batch["tokens"]
    logits = model(tokens[:, :-1])
    return {"loss": optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()}
