"""An encoder-decoder with relative positions, top to bottom.

In: a source, and the target as far as it is known. Out: one row of logits per position of the target.

Dimensions: B batch, S positions of the source, T positions of the target, Q positions that look, P positions looked at,
D model width, H heads, K width of a head, F feed-forward width, R buckets of distances, V vocabulary.
Each parameter names its logical axes beside its initializer; `sharding.py` says over which mesh axis each is split.

Source: Raffel et al. 2020, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer", in the
form of T5 1.1: RMSNorm, no biases, gated GELU, scores without a scale, one table of distances for all layers, an
unembedding of its own. Unlike it: no dropout.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from nightjar_models.architectures.layers import attend, cross_entropy, gated_feed_forward, look_up, multiply, rms_norm
from nightjar_models.architectures.precision import make_products
from nightjar_models.architectures.stack import run_layers, stack_layers
from nightjar_models.parallel.sharding import Keys, parameter
from nightjar_models.presets.config import Compute
from nightjar_models.presets.sizes import T5Config

PADDING = 0  # fills up both sides; also what the decoder starts from
_GELU = functools.partial(jax.nn.gelu, approximate=True)


class T5(nnx.Module):
    """A shared embedding, an encoder, a decoder that looks at it, and the logits of the target."""

    def __init__(self, config: T5Config, compute: Compute, rngs: Keys) -> None:
        self.config, self.compute = config, compute
        V, D, H, R = config.vocabulary, config.width, config.heads, config.buckets
        self.embedding = parameter(rngs, (V, D), ("vocabulary", None), deviation=1.0)
        self.encoder_distances = parameter(rngs, (R, H), (None, "heads"), deviation=D**-0.5)
        self.encoder = stack_layers([EncoderBlock(config, compute, rngs) for _ in range(config.layers)], compute)
        self.encoder_norm = parameter(rngs, (D,), (None,), constant=1.0)
        self.decoder_distances = parameter(rngs, (R, H), (None, "heads"), deviation=D**-0.5)
        self.decoder = stack_layers([DecoderBlock(config, compute, rngs) for _ in range(config.layers)], compute)
        self.decoder_norm = parameter(rngs, (D,), (None,), constant=1.0)
        self.unembedding = parameter(rngs, (D, V), ("width", "vocabulary"), deviation=D**-0.5)

    def __call__(self, source: Int[Array, "B S"], target: Int[Array, "B T"]) -> Float[Array, "B T V"]:
        """Logits of each position of the target, which sees the source and the target before it."""
        seen = source != PADDING
        bias = self.bias(self.encoder_distances[...], source.shape[1], both_ways=True)
        x = look_up(self.embedding[...], source)
        with jax.named_scope("encoder"):
            encoded = run_layers(self.encoder, x, seen, constant=(bias,), compute=self.compute)
        encoded = rms_norm(encoded, self.encoder_norm[...], self.compute.norm)
        before = jnp.pad(target[:, :-1], ((0, 0), (1, 0)), constant_values=PADDING)
        bias = self.bias(self.decoder_distances[...], target.shape[1], both_ways=False)
        x = look_up(self.embedding[...], before)
        with jax.named_scope("decoder"):
            x = run_layers(self.decoder, x, encoded, seen, constant=(bias,), compute=self.compute)
        return multiply(rms_norm(x, self.decoder_norm[...], self.compute.norm), self.unembedding[...])

    def bias(self, table: Float[Array, "R H"], length: int, *, both_ways: bool) -> Float[Array, "H Q P"]:
        """What each head adds to the score of each pair of positions."""
        positions = jnp.arange(length)
        distance = positions[None, :] - positions[:, None]
        rows = bucket(distance, self.config.buckets, self.config.farthest, both_ways=both_ways)
        return jnp.moveaxis(look_up(table, rows), -1, 0)


class EncoderBlock(nnx.Module):
    """Attention of the source to itself, then a gated feed-forward layer, each added to its input."""

    def __init__(self, config: T5Config, compute: Compute, rngs: Keys) -> None:
        self.attention = Attention(config, compute, rngs)
        self.feed_forward = FeedForward(config, compute, rngs)

    def __call__(
        self, x: Float[Array, "B S D"], seen: Bool[Array, "B S"], bias: Float[Array, "H S S"]
    ) -> Float[Array, "B S D"]:
        """One layer of the encoder."""
        h = rms_norm(x, self.attention.norm[...], self.attention.norm_how)
        x = x + self.attention(h, h, seen=seen, bias=bias, causal=False)
        return x + self.feed_forward(x)


class DecoderBlock(nnx.Module):
    """Attention of the target to what is before it, attention to the source, then a gated feed-forward layer."""

    def __init__(self, config: T5Config, compute: Compute, rngs: Keys) -> None:
        self.attention = Attention(config, compute, rngs)
        self.cross = Attention(config, compute, rngs)
        self.feed_forward = FeedForward(config, compute, rngs)

    def __call__(
        self,
        x: Float[Array, "B T D"],
        encoded: Float[Array, "B S D"],
        seen: Bool[Array, "B S"],
        bias: Float[Array, "H T T"],
    ) -> Float[Array, "B T D"]:
        """One layer of the decoder."""
        h = rms_norm(x, self.attention.norm[...], self.attention.norm_how)
        x = x + self.attention(h, h, seen=None, bias=bias, causal=True)
        h = rms_norm(x, self.cross.norm[...], self.cross.norm_how)
        x = x + self.cross(h, encoded, seen=seen, bias=None, causal=False)
        return x + self.feed_forward(x)


class Attention(nnx.Module):
    """Heads of a width of their own; the scores are not scaled, the queries start smaller instead."""

    def __init__(self, config: T5Config, compute: Compute, rngs: Keys) -> None:
        self.how, self.norm_how = compute.attention, compute.norm
        D, H, K, residual = config.width, config.heads, config.head_width, (2 * config.layers) ** -0.5
        axes = ("width", "heads", None)
        self.norm = parameter(rngs, (D,), (None,), constant=1.0)
        self.q = parameter(rngs, (D, H, K), axes, deviation=(D * K) ** -0.5)
        self.k = parameter(rngs, (D, H, K), axes, deviation=D**-0.5)
        self.v = parameter(rngs, (D, H, K), axes, deviation=D**-0.5)
        self.projection = parameter(rngs, (H, K, D), ("heads", None, "width"), deviation=residual * (H * K) ** -0.5)

    def __call__(
        self,
        x: Float[Array, "B Q D"],
        others: Float[Array, "B P D"],
        *,
        seen: Bool[Array, "B P"] | None,
        bias: Float[Array, "H Q P"] | None,
        causal: bool,
    ) -> Float[Array, "B Q D"]:
        """What is added to the stream."""
        q = jnp.einsum("bqd,dhk->bhqk", x, self.q[...])
        k, v = (jnp.einsum("bpd,dhk->bhpk", others, weight[...]) for weight in (self.k, self.v))
        mixed = attend(q, k, v, how=self.how, causal=causal, seen=seen, bias=bias, scale=1.0)
        return jnp.einsum("bhqk,hkd->bqd", mixed, self.projection[...])


class FeedForward(nnx.Module):
    """A gated feed-forward layer behind a norm."""

    def __init__(self, config: T5Config, compute: Compute, rngs: Keys) -> None:
        self.norm_how = compute.norm
        self.products = make_products(compute, 3)
        D, F, residual = config.width, config.feed_forward, (2 * config.layers) ** -0.5
        self.norm = parameter(rngs, (D,), (None,), constant=1.0)
        self.w_gate = parameter(rngs, (D, F), ("width", "feed_forward"), deviation=D**-0.5)
        self.w_in = parameter(rngs, (D, F), ("width", "feed_forward"), deviation=D**-0.5)
        self.w_out = parameter(rngs, (F, D), ("feed_forward", "width"), deviation=residual * F**-0.5)

    def __call__(self, x: Float[Array, "B Q D"]) -> Float[Array, "B Q D"]:
        """What is added to the stream."""
        h = rms_norm(x, self.norm[...], self.norm_how)
        return gated_feed_forward(h, self.w_gate[...], self.w_in[...], self.w_out[...], _GELU, self.products)


def bucket(distance: Int[Array, "Q P"], buckets: int, farthest: int, *, both_ways: bool) -> Int[Array, "Q P"]:
    """The row of the table of distances: near ones have one each, far ones share, in logarithmic steps.

    Args:
        distance: position looked at, less the position that looks.
        buckets: rows of the table.
        farthest: from here on all share the last row.
        both_ways: half of the rows are for later positions; else those count as distance zero.

    >>> bucket(jnp.array([0, -1, -3, -20, -500, 4]), 8, 64, both_ways=False).tolist()
    [0, 1, 3, 6, 7, 0]
    """
    later = jnp.zeros_like(distance)
    if both_ways:
        buckets //= 2
        later = jnp.where(distance > 0, buckets, 0)
        away = jnp.abs(distance)
    else:
        away = jnp.maximum(-distance, 0)
    exact = buckets // 2
    ratio = jnp.log(jnp.maximum(away, 1) / exact) / math.log(farthest / exact)
    far = jnp.minimum(exact + (ratio * (buckets - exact)).astype(distance.dtype), buckets - 1)
    return later + jnp.where(away < exact, away, far)


def measure(model: T5, batch: Mapping[str, Array]) -> dict[str, Float[Array, ""]]:
    """The mean negative log likelihood of each symbol of the target, in nats, as `loss`; the share of right ones.

    Both are means over the symbols that are not padding, zero where there are none; `weight` is how many there are.
    """
    target = batch["target"]
    logits = model(batch["source"], target)
    counted = (target != PADDING).astype(jnp.float32)
    weight = counted.sum()
    right = (logits.argmax(axis=-1) == target) * counted
    return {
        "loss": (cross_entropy(logits, target) * counted).sum() / jnp.maximum(weight, 1),
        "accuracy": right.sum() / jnp.maximum(weight, 1),
        "weight": weight,
    }
