"""An encoder-decoder with relative positions, top to bottom.

In: a source, and the target as far as it is known. Out: one row of logits per position of the target.

Dimensions: B batch, S positions of the source, T positions of the target, Q positions that look, P positions looked at,
D model width, H heads, K width of a head, F feed-forward width, R buckets of distances, V vocabulary.
Each initializer names the mesh axes over which its parameter is split.

Source: Raffel et al. 2020, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer", in the
form of T5 1.1: RMSNorm, no biases, gated GELU, scores without a scale, one table of distances for all layers, an
unembedding of its own, no dropout in pretraining.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from nightjar_models.architectures.layers import (
    GELU,
    MATRIX,
    GatedFeedForward,
    attend,
    cross_entropy,
    make_embed,
    make_rms_norm,
    make_unembedding,
    residual,
)
from nightjar_models.architectures.stack import run_layers, stack_layers
from nightjar_models.parallel.sharding import partitioned
from nightjar_models.presets.config import DTYPES, Compute
from nightjar_models.presets.sizes import T5Config

PADDING = 0  # fills up both sides; also the decoder's first token


class T5(nnx.Module):
    """A shared embedding, an encoder, a decoder that looks at it, and the logits of the target."""

    def __init__(self, config: T5Config, compute: Compute, *, rngs: nnx.Rngs) -> None:
        self.compute = compute
        V, D, L = config.vocabulary, config.width, config.layers
        self.embedding = make_embed(V, D, nnx.initializers.normal(1.0), compute, rngs)
        self.encoder_distances = Distances(config, compute, both_ways=True, rngs=rngs)
        self.encoder = stack_layers(lambda rngs: EncoderBlock(config, compute, rngs=rngs), L, compute, rngs)
        self.encoder_norm = make_rms_norm(D, compute, rngs)
        self.decoder_distances = Distances(config, compute, both_ways=False, rngs=rngs)
        self.decoder = stack_layers(lambda rngs: DecoderBlock(config, compute, rngs=rngs), L, compute, rngs)
        self.decoder_norm = make_rms_norm(D, compute, rngs)
        self.unembedding = make_unembedding(D, V, compute, rngs)

    def __call__(self, source: Int[Array, "B S"], target: Int[Array, "B T"]) -> Float[Array, "B T V"]:
        """Logits of each position of the target, which sees the source and the target before it."""
        encoded, seen = self.encode(source)
        before = jnp.pad(target[:, :-1], ((0, 0), (1, 0)), constant_values=PADDING)
        with jax.named_scope("decoder"):
            bias = self.decoder_distances(target.shape[1])
            x = run_layers(self.decoder, self.embedding(before), encoded, seen, constant=(bias,), compute=self.compute)
        return self.unembedding(self.decoder_norm(x))

    def encode(self, source: Int[Array, "B S"]) -> tuple[Float[Array, "B S D"], Bool[Array, "B 1 1 S"]]:
        """The source as the decoder sees it, and which positions are no padding."""
        seen = (source != PADDING)[:, None, None, :]
        with jax.named_scope("encoder"):
            bias = self.encoder_distances(source.shape[1])
            x = run_layers(self.encoder, self.embedding(source), seen, constant=(bias,), compute=self.compute)
        return self.encoder_norm(x), seen


class Distances(nnx.Module):
    """Each head's bias on the score of each pair of positions, by their distance."""

    def __init__(self, config: T5Config, compute: Compute, *, both_ways: bool, rngs: nnx.Rngs) -> None:
        self.buckets, self.farthest, self.both_ways = config.buckets, config.farthest, both_ways
        init = nnx.initializers.normal(config.width**-0.5)
        self.table = make_embed(config.buckets, config.heads, init, compute, rngs, by_column=True)

    def __call__(self, length: int) -> Float[Array, "1 H Q P"]:
        """The bias of as many positions."""
        positions = jnp.arange(length)
        distance = positions[None, :] - positions[:, None]
        rows = bucket(distance, self.buckets, self.farthest, both_ways=self.both_ways)
        return jnp.moveaxis(self.table(rows), -1, 0)[None]


class EncoderBlock(nnx.Module):
    """Attention of the source to itself, then a gated feed-forward layer, each behind a norm and added to its input."""

    def __init__(self, config: T5Config, compute: Compute, *, rngs: nnx.Rngs) -> None:
        D = config.width
        self.attention_norm = make_rms_norm(D, compute, rngs)
        self.attention = Attention(config, compute, rngs=rngs)
        self.feed_forward_norm = make_rms_norm(D, compute, rngs)
        self.feed_forward = GatedFeedForward(D, config.feed_forward, config.layers, compute, activation=GELU, rngs=rngs)

    def __call__(
        self, x: Float[Array, "B S D"], seen: Bool[Array, "B 1 1 S"], bias: Float[Array, "1 H S S"]
    ) -> Float[Array, "B S D"]:
        h = self.attention_norm(x)
        x = x + self.attention(h, h, mask=seen, bias=bias)
        return x + self.feed_forward(self.feed_forward_norm(x))


class DecoderBlock(nnx.Module):
    """Attention of the target to earlier positions, attention to the source, then a gated feed-forward layer."""

    def __init__(self, config: T5Config, compute: Compute, *, rngs: nnx.Rngs) -> None:
        D = config.width
        self.attention_norm = make_rms_norm(D, compute, rngs)
        self.attention = Attention(config, compute, rngs=rngs)
        self.cross_norm = make_rms_norm(D, compute, rngs)
        self.cross = Attention(config, compute, rngs=rngs)
        self.feed_forward_norm = make_rms_norm(D, compute, rngs)
        self.feed_forward = GatedFeedForward(D, config.feed_forward, config.layers, compute, activation=GELU, rngs=rngs)

    def __call__(
        self,
        x: Float[Array, "B T D"],
        encoded: Float[Array, "B S D"],
        seen: Bool[Array, "B 1 1 S"],
        bias: Float[Array, "1 H T T"],
    ) -> Float[Array, "B T D"]:
        """One layer of the decoder."""
        h = self.attention_norm(x)
        x = x + self.attention(h, h, bias=bias, is_causal=True)
        x = x + self.cross(self.cross_norm(x), encoded, mask=seen)
        return x + self.feed_forward(self.feed_forward_norm(x))


class Attention(nnx.Module):
    """Heads of a width of their own; the scores are not scaled, the queries start smaller instead."""

    def __init__(self, config: T5Config, compute: Compute, *, rngs: nnx.Rngs) -> None:
        self.how = compute.attention
        D, H, K = config.width, config.heads, config.head_width

        def project(init: nnx.Initializer) -> nnx.LinearGeneral:
            return nnx.LinearGeneral(
                D,
                (H, K),
                use_bias=False,
                dtype=DTYPES[compute.dtype],
                kernel_init=partitioned(init, ("fsdp", "tensor", None)),
                rngs=rngs,
            )

        self.query = project(nnx.initializers.variance_scaling(1 / K, "fan_in", "normal"))
        self.key, self.value = project(MATRIX), project(MATRIX)
        self.out = nnx.LinearGeneral(
            (H, K),
            D,
            axis=(-2, -1),
            use_bias=False,
            dtype=DTYPES[compute.dtype],
            kernel_init=partitioned(residual(config.layers), ("tensor", None, "fsdp")),
            rngs=rngs,
        )

    def __call__(
        self,
        x: Float[Array, "B Q D"],
        others: Float[Array, "B P D"],
        *,
        mask: Bool[Array, "B 1 1 P"] | None = None,
        bias: Float[Array, "1 H Q P"] | None = None,
        is_causal: bool = False,
    ) -> Float[Array, "B Q D"]:
        query, key, value = self.query(x), self.key(others), self.value(others)
        mixed = attend(query, key, value, how=self.how, mask=mask, bias=bias, is_causal=is_causal, scale=1.0)
        return self.out(mixed)


def bucket(distance: Int[Array, "Q P"], buckets: int, farthest: int, *, both_ways: bool) -> Int[Array, "Q P"]:
    """The row of the table of distances: near ones have one each, far ones share, in logarithmic steps.

    Args:
        distance: position looked at, less the position that looks.
        farthest: from here on all share the last row.
        both_ways: half of the rows are for later positions; else later positions count as distance zero.

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


def measure(model: T5, batch: Mapping[str, Array]) -> dict[str, Float[Array, "B T"]]:
    """The negative log likelihood of each symbol of the target, in nats, as `loss`; whether it is the likeliest one.

    `mask` is false for padding of the target, which does not count.
    """
    target = batch["target"]
    logits = model(batch["source"], target)
    right = (logits.argmax(axis=-1) == target).astype(jnp.float32)
    return {"loss": cross_entropy(logits, target), "accuracy": right, "mask": target != PADDING}
