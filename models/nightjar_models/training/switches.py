"""Which settings of `compute` can a model follow? What it cannot is refused, so that a result never names it.

In: a config and a mesh. Out: nothing, or an `InputError` that names the setting and the workloads that have a use for
it. What depends on the device is not settled here: attention that cuDNN or a ring cannot compute falls back, and says
so (`kernels/fused_attention.py`).
"""

from __future__ import annotations

from jax.sharding import Mesh

from nightjar_models.architectures import te_layers
from nightjar_models.errors import InputError
from nightjar_models.presets import PRESETS
from nightjar_models.presets.config import Scalar, TrainConfig
from nightjar_models.presets.sizes import (
    DiffusionConfig,
    GPTConfig,
    LlamaConfig,
    ModelConfig,
    MoEConfig,
    T5Config,
    ViTConfig,
)

_DECODERS = (GPTConfig, LlamaConfig, MoEConfig)
_NORMED = (LlamaConfig, MoEConfig, T5Config)  # by RMSNorm; the others have LayerNorm, GroupNorm or none
_STREAMS = (*_DECODERS, ViTConfig)  # attention without a bias and without padding
_FED = (*_STREAMS, T5Config)  # most of whose products are those of feed-forward layers
_DENSE = (GPTConfig, LlamaConfig, ViTConfig, T5Config)  # without experts, whose products are one with a batch
_PLAIN = (GPTConfig, ViTConfig)  # of plain transformer blocks alone: layer norm, GELU
_LAYERED = (*_FED, DiffusionConfig)  # with equal layers, and attention; of the U-Net those of the text

# A setting that changes nothing but in these models. Those that are not listed change the program of every model.
NEEDS: dict[tuple[str, Scalar], tuple[type[ModelConfig], ...]] = {
    ("scan_layers", True): _LAYERED,
    ("attention", "xla"): _LAYERED,
    ("attention", "cudnn"): _LAYERED,
    ("attention", "ring"): _STREAMS,
    ("norm", "ffi"): _NORMED,
    ("norm", "pallas"): _NORMED,
    ("products", "fp8"): _FED,
    **{("products", f"{te_layers.SWITCH}{recipe}"): _DENSE for recipe in te_layers.RECIPES},
    ("layers", te_layers.FEED_FORWARD): _PLAIN,
    ("layers", te_layers.BLOCK): _PLAIN,
}
_FP8_GOES = "fp8 goes with every axis but a pipeline"


def check_switches(config: TrainConfig, mesh: Mesh) -> None:
    """Refuses a setting that the model would ignore, FP8 in a pipeline, and TransformerEngine where it cannot be.

    Raises:
        InputError: there is one.
        ToolError: TransformerEngine is not installed, or the device cannot compute its recipe.
    """
    for (field, value), models in NEEDS.items():
        if getattr(config.compute, field) == value and not isinstance(config.model, models):
            setting = f"compute.{field}={str(value).lower()}"
            raise InputError(
                f"{setting}: {config.workload} has nothing that it would change; "
                f"expected one of {', '.join(_list_presets(models))}.",
                f"leave compute.{field} as it is",
            )
    if config.compute.products == "fp8" and (stages := mesh.shape["pipeline"]) > 1:
        raise InputError(
            f"compute.products=fp8: expected a mesh without a pipeline, found pp{stages}.",
            "the largest value of a step is that of the whole batch, and each stage sees microbatches",
        )
    recipe = te_layers.find_recipe(config.compute.products)
    if recipe is None and config.compute.layers == "plain":
        return
    # TransformerEngine 2.20 finds the largest value of all devices by the mesh of a context, which would have to be
    # there while XLA compiles, too: without it each device scales by its own.
    if mesh.size > 1:
        field, goes = ("layers", "plain goes with every axis") if recipe is None else ("products", _FP8_GOES)
        raise InputError(
            f"compute.{field}={getattr(config.compute, field)}: expected one device, found a mesh of {mesh.size}.",
            f"compute.{field}={goes}",
        )
    te_layers.check_library(recipe, mesh.devices.flat[0])


def _list_presets(models: tuple[type[ModelConfig], ...]) -> list[str]:
    """The workloads with one of these models."""
    return [name for name, preset in PRESETS.items() if isinstance(preset().model, models)]
