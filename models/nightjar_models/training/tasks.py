"""Training tasks: the module, data and scores of each model, by type of config.

In: a config. Out: a `Task`, which the trainer uses without knowing the model.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, Float

from nightjar_models.architectures import diffusion, gpt, llama, moe, t5, vae, vit
from nightjar_models.data import digits, noised
from nightjar_models.data.pipeline import Data
from nightjar_models.data.text import read_text
from nightjar_models.data.vowels import read_vowels
from nightjar_models.errors import InputError
from nightjar_models.parallel.mesh import AXES
from nightjar_models.presets.config import Source, TrainConfig
from nightjar_models.presets.sizes import (
    DiffusionConfig,
    GPTConfig,
    LlamaConfig,
    ModelConfig,
    MoEConfig,
    T5Config,
    VAEConfig,
    ViTConfig,
)

Scores = dict[str, Float[Array, "..."]]  # a value for each example or position, so that a mean over batches is exact
MASK = "mask"  # not a score: false if the others do not count

# Mesh axes along which devices would only repeat the same work: these models have neither positions nor equal layers.
WITHOUT: dict[type[ModelConfig], tuple[str, ...]] = {
    DiffusionConfig: ("sequence", "pipeline"),
    VAEConfig: ("sequence", "pipeline"),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Task:
    """A model and its data.

    Attributes:
        build: makes the module from random numbers.
        measure: the model's scores on a batch; training minimises the mean of `loss`.
        read: reads the data.
        units: unit of each score, and whether lower or higher is better.
        item: the unit of throughput.
        items_per_example: the number of items in one example.
    """

    build: Callable[[nnx.Rngs], nnx.Module]
    measure: Callable[[Any, Any], Scores]
    read: Callable[[], Data]
    units: dict[str, tuple[str, str]]
    item: str
    items_per_example: int


def check_axes(config: TrainConfig, mesh: Mesh) -> None:
    """Rejects a mesh with an axis that the model cannot use.

    Raises:
        InputError: the mesh has such an axis.
    """
    for axis in WITHOUT.get(type(config.model), ()):
        if (count := mesh.shape[axis]) > 1:
            short = next(name for name, long in AXES.items() if long == axis)
            usable = [name for name, long in AXES.items() if long not in WITHOUT[type(config.model)]]
            raise InputError(
                f"--mesh: {short}{count}: {config.workload} has nothing to split over {axis}; expected axes of "
                f"{', '.join(usable)}.",
                f"give those devices to another axis, such as dp{count}",
            )


_images = functools.partial(Task, item="images", items_per_example=1)


def find_task(config: TrainConfig) -> Task:
    """The task of a config, by the type of its model."""
    model, compute, data = config.model, config.compute, config.data
    match model:
        case GPTConfig():
            return _text(lambda rngs: gpt.GPT(model, compute, rngs=rngs), gpt.measure, model.length)
        case LlamaConfig():
            return _text(lambda rngs: llama.Llama(model, compute, rngs=rngs), llama.measure, model.length)
        case MoEConfig():
            return _text(lambda rngs: moe.MoE(model, compute, rngs=rngs), moe.measure, model.length)
        case T5Config():
            return Task(
                build=lambda rngs: t5.T5(model, compute, rngs=rngs),
                measure=t5.measure,
                read=lambda: read_vowels(model.length, model.target_length, model.vocabulary),
                units={"loss": ("nats/token", "lower"), "accuracy": ("fraction", "higher")},
                item="sequences",
                items_per_example=1,
            )
        case ViTConfig():
            return _images(
                build=lambda rngs: vit.ViT(model, compute, rngs=rngs),
                measure=vit.measure,
                read=lambda: _read_images(model, data),
                units={"loss": ("nats/image", "lower"), "accuracy": ("fraction", "higher")},
            )
        case DiffusionConfig():
            return _images(
                build=lambda rngs: diffusion.UNet(model, compute, rngs=rngs),
                measure=diffusion.measure,
                read=lambda: noised.add_names(digits.load(), model.image, model.channels, model.text_length),
                units={"loss": ("mean square", "lower"), "wrong_text_loss": ("mean square", "higher")},
            )
        case VAEConfig():
            return _images(
                build=lambda rngs: vae.VAE(model, compute, rngs=rngs),
                measure=vae.measure,
                read=lambda: noised.add_keys(digits.load(), model.image),
                units={"loss": ("nats/image", "lower"), "reconstruction": ("nats/image", "lower")},
            )


def _text(build: Callable[[nnx.Rngs], nnx.Module], measure: Callable[[Any, Any], Scores], length: int) -> Task:
    """A causal decoder on bytes of English text."""
    return Task(
        build=build,
        measure=measure,
        read=lambda: read_text(length),
        units={"loss": ("nats/token", "lower")},
        item="tokens",
        items_per_example=length,
    )


def _read_images(model: ViTConfig, source: Source) -> Data:
    """The user's photographs, or digits."""
    if source.images:
        from nightjar_models.data.photographs import read_photographs

        return read_photographs(Path(source.images), model.image, model.classes, source.decoder)
    return digits.split(digits.load(), model.image, model.channels)
