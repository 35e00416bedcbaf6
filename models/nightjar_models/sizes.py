"""How large is each model? One frozen dataclass per file of `models/`; its type chooses model and data (`tasks.py`).

In: numbers from a preset or `--set model.KEY=VALUE`. Out: sizes that fit together, or an `InputError` that names the
one that does not. Nothing here imports JAX.
"""

from __future__ import annotations

import dataclasses

from nightjar_models.errors import InputError


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GPTConfig:
    """Sizes of the causal decoder in `models/gpt.py`."""

    vocabulary: int = 256
    length: int
    width: int
    layers: int
    heads: int
    feed_forward: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LlamaConfig:
    """Sizes of the causal decoder in `models/llama.py`.

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
class ViTConfig:
    """Sizes of the vision transformer in `models/vit.py`."""

    image: int = 8
    channels: int = 1
    patch: int
    classes: int = 10
    width: int
    layers: int
    heads: int
    feed_forward: int


ModelConfig = GPTConfig | LlamaConfig | ViTConfig


def check_sizes(model: ModelConfig) -> None:
    """Refuses sizes that do not fit together.

    Raises:
        InputError: one of them does not divide another, or is larger than it may be.
    """
    match model:
        case GPTConfig() | ViTConfig():
            _divides(model, "width", "heads")
        case LlamaConfig():
            _divides(model, "width", "heads")
            _divides(model, "heads", "groups")
            if model.width // model.heads % 2:
                found = model.width // model.heads
                raise InputError(f"model.width: expected an even width per head (rotary positions), found {found}.")
    if isinstance(model, ViTConfig) and model.image % model.patch:
        raise InputError(f"model.patch: expected a divisor of the image's side ({model.image}), found {model.patch}.")


def _divides(model: ModelConfig, whole: str, part: str) -> None:
    size, by = getattr(model, whole), getattr(model, part)
    if size % by:
        raise InputError(f"model.{whole}: expected a multiple of model.{part} ({by}), found {size}.")
