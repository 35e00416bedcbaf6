"""Model sizes: one frozen dataclass per file of `architectures/`; its type chooses model and data (`tasks.py`).

In: numbers from a preset or `--set model.KEY=VALUE`. Out: sizes that fit together, or an `InputError` that names the
one that does not. Nothing here imports JAX.
"""

from __future__ import annotations

import dataclasses

from nightjar_models.errors import InputError


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GPTConfig:
    """Sizes of the causal decoder in `architectures/gpt.py`.

    Attributes:
        dropout: share of the stream's numbers that each addition to it sets to zero while it trains.
    """

    vocabulary: int = 256
    length: int
    width: int
    layers: int
    heads: int
    feed_forward: int
    dropout: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LlamaConfig:
    """Sizes of the causal decoder in `architectures/llama.py`.

    Attributes:
        groups: heads of keys and values; each serves `heads / groups` heads of queries.
        rope_base: the longest wavelength of the rotary positions, in units of 2 pi positions.
    """

    vocabulary: int = 256
    length: int
    width: int
    layers: int
    heads: int
    groups: int
    feed_forward: int
    rope_base: float = 10_000.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MoEConfig:
    """Sizes of the mixture-of-experts decoder in `architectures/moe.py`.

    Attributes:
        groups: heads of keys and values.
        feed_forward: width of one expert.
        chosen: the number of experts that a token is sent to.
        capacity: the number of tokens that an expert takes, as a multiple of its even share; the others pass it by.
        routing_length: tokens of a sequence that compete for the same places.
        balance: weight of the loss that keeps the experts evenly used.
        rope_base: as in `LlamaConfig`.
    """

    vocabulary: int = 256
    length: int
    width: int
    layers: int
    heads: int
    groups: int
    feed_forward: int
    experts: int
    chosen: int = 2
    capacity: float = 1.25
    routing_length: int
    balance: float = 0.01
    rope_base: float = 10_000.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class T5Config:
    """Sizes of the encoder-decoder in `architectures/t5.py`.

    Attributes:
        length: positions of the source.
        target_length: positions of the target.
        layers: of the encoder, and as many of the decoder.
        head_width: of each head; T5 does not tie it to `width / heads`.
        buckets: the number of distinct relative distances.
        farthest: the distance from which on all fall into the last bucket.
    """

    vocabulary: int
    length: int
    target_length: int
    width: int
    layers: int
    heads: int
    head_width: int
    feed_forward: int
    buckets: int = 32
    farthest: int = 128


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ViTConfig:
    """Sizes of the vision transformer in `architectures/vit.py`.

    Attributes:
        dropout: as in `GPTConfig`.
        smoothing: share of a label that is spread evenly over all classes.
    """

    image: int = 8
    channels: int = 1
    patch: int
    classes: int = 10
    width: int
    layers: int
    heads: int
    feed_forward: int
    dropout: float = 0.0
    smoothing: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DiffusionConfig:
    """Sizes of the text-conditioned U-Net in `architectures/diffusion.py`.

    Attributes:
        image: side of the image in pixels.
        channels: of the image.
        width: channels at full resolution; level n has `n + 1` times as many.
        levels: resolutions, each half of the one before.
        blocks: residual blocks per level, down and up alike.
        heads: of every attention.
        attention_levels: the number of coarsest levels that attend to themselves and to the text.
        vocabulary: of the text's bytes.
        text_length: bytes of the text, filled up with zeros.
        text_width: of the text encoder.
        text_layers: of the text encoder.
        unconditional: share of training examples whose text is withheld, for classifier-free guidance.
    """

    image: int = 8
    channels: int = 1
    width: int
    levels: int
    blocks: int
    heads: int
    attention_levels: int = 1
    vocabulary: int = 128
    text_length: int = 8
    text_width: int
    text_layers: int
    unconditional: float = 0.1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class VAEConfig:
    """Sizes of the variational autoencoder in `architectures/vae.py`."""

    image: int = 8
    feed_forward: int
    latent: int


ModelConfig = GPTConfig | LlamaConfig | MoEConfig | T5Config | ViTConfig | DiffusionConfig | VAEConfig


def check_sizes(model: ModelConfig) -> None:
    """Refuses sizes that do not fit together."""
    match model:
        case GPTConfig() | ViTConfig():
            _divides(model, "width", "heads")
            _at_most(model, "dropout", 0.99)
        case LlamaConfig() | MoEConfig():
            _divides(model, "width", "heads")
            _divides(model, "heads", "groups")
            if model.width // model.heads % 2:
                per_head = model.width // model.heads
                raise InputError(f"model.width: expected an even width per head (rotary positions), found {per_head}.")
        case DiffusionConfig():
            _divides(model, "text_width", "heads")
            _divides(model, "width", "heads")
            if model.image % 2 ** (model.levels - 1):
                raise InputError(f"model.image: expected a multiple of {2 ** (model.levels - 1)}, found {model.image}.")
            _at_most(model, "attention_levels", model.levels)
            _at_most(model, "unconditional", 1)
            check_least(model, "vocabulary", ord("z") + 1, "letters")
        case T5Config():
            check_least(model, "buckets", 4, "two directions")
            check_least(model, "farthest", model.buckets // 2 + 1, "half of model.buckets, and one")
    if isinstance(model, GPTConfig | LlamaConfig | MoEConfig):
        check_least(model, "vocabulary", 256, "bytes")
    if isinstance(model, ViTConfig):
        _at_most(model, "smoothing", 0.99)
        if model.image % model.patch:
            raise InputError(
                f"model.patch: expected a divisor of the image's side ({model.image}), found {model.patch}."
            )
    if isinstance(model, MoEConfig):
        _divides(model, "length", "routing_length")
        _at_most(model, "chosen", model.experts)


def _divides(model: ModelConfig, whole: str, part: str) -> None:
    size, by = getattr(model, whole), getattr(model, part)
    if size % by:
        raise InputError(f"model.{whole}: expected a multiple of model.{part} ({by}), found {size}.")


def check_least(model: ModelConfig, name: str, least: int, why: str) -> None:
    if getattr(model, name) < least:
        raise InputError(f"model.{name}: expected at least {least} ({why}), found {getattr(model, name)}.")


def _at_most(model: ModelConfig, name: str, limit: float) -> None:
    if getattr(model, name) > limit:
        raise InputError(f"model.{name}: expected at most {limit}, found {getattr(model, name)}.")
