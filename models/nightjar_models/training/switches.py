"""Checks that a model supports the `compute` settings of its config, so that no result names a setting without effect.

In: a config and a mesh. Out: nothing, or an `InputError` that names the setting and the workloads that support it.
Attention that the device cannot compute with cuDNN or a ring is not an error: it falls back with a warning
(`kernels/fused_attention.py`).
"""

from __future__ import annotations

import dataclasses

from jax.sharding import Mesh

from nightjar_models.architectures import te_layers
from nightjar_models.errors import InputError
from nightjar_models.parallel.mesh import AXES
from nightjar_models.parallel.sharding import BATCH
from nightjar_models.presets import PRESETS
from nightjar_models.presets.config import Compute, Scalar, TrainConfig
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
_FED = (*_STREAMS, T5Config)  # most of whose products are in feed-forward layers
# Without experts: under vmap TransformerEngine 2.20 fails (jax/cpp_extensions/quantization.py misses `is_outer`).
_DENSE = (GPTConfig, LlamaConfig, ViTConfig, T5Config)
_BLOCKS = (GPTConfig, ViTConfig, LlamaConfig)  # of blocks that TransformerEngine has, too
_LAYERED = (*_FED, DiffusionConfig)  # with equal layers, and attention; of the U-Net only the text's

# Settings that have an effect only in these models. A setting that is not listed changes the program of every model.
NEEDS: dict[tuple[str, Scalar], tuple[type[ModelConfig], ...]] = {
    ("scan_layers", True): _LAYERED,
    ("attention", "cudnn"): _LAYERED,
    ("attention", "ring"): _STREAMS,
    ("norm", "ffi"): _NORMED,
    ("norm", "pallas"): _NORMED,
    ("experts", "ragged"): (MoEConfig,),
    ("embedding_sum", "f32"): (*_DECODERS, T5Config),
    ("products", "fp8"): _FED,
    **{("products", f"{te_layers.SWITCH}{recipe}"): _DENSE for recipe in te_layers.RECIPES},
    ("layers", te_layers.FEED_FORWARD): _BLOCKS,
    ("layers", te_layers.BLOCK): _BLOCKS,
}
_FP8_WORKS = "fp8 works with every axis except a pipeline"


def check_switches(config: TrainConfig, mesh: Mesh) -> None:
    """Rejects a setting that the model would ignore, FP8 and dropout in a pipeline, TransformerEngine on other axes.

    Raises:
        InputError: the config has such a setting.
        ToolError: TransformerEngine is not installed, or the device cannot compute its recipe.
    """
    _check_idiom(config, mesh)
    if config.optimizer == "muon" and isinstance(config.model, DiffusionConfig):
        raise InputError(
            f"optimizer=muon: expected a model whose hidden layers are matrices, found {config.workload}.",
            "adamw moves convolutions",
        )
    for (field, value), models in NEEDS.items():
        if getattr(config.compute, field) == value and not isinstance(config.model, models):
            setting = f"compute.{field}={str(value).lower()}"
            presets = (name for name, preset in PRESETS.items() if isinstance(preset().model, models))
            raise InputError(
                f"{setting}: {config.workload} does not use this setting; expected one of {', '.join(presets)}.",
                f"leave compute.{field} as it is",
            )
    whole = "FP8 scales need the largest value of the whole batch, but a stage sees only microbatches"
    counted = "--set model.dropout=0: the stages of a pipeline keep no counters of random numbers"
    of_stages = (
        (config.compute.products == "fp8", "compute.products=fp8", whole),
        (getattr(config.model, "dropout", 0), "model.dropout", counted),
    )
    for is_set, setting, why in of_stages:
        if is_set and (stages := mesh.shape["pipeline"]) > 1:
            raise InputError(f"{setting}: expected a mesh without a pipeline, found pp{stages}.", why)
    recipe = te_layers.find_recipe(config.compute.products)
    if recipe is None and config.compute.layers == "plain":
        return
    # TransformerEngine 2.20 sums gradients of biases and norms over these axes alone (jax/sharding.py,
    # all_reduce_sum_along_dp_fsdp_tpsp).
    if others := [short for short, name in AXES.items() if mesh.shape[name] > 1 and name not in te_layers.SPLITS]:
        field, advice = ("products", _FP8_WORKS)
        if recipe is None:
            field, advice = ("layers", "plain works with every axis")
        raise InputError(
            f"compute.{field}={getattr(config.compute, field)}: expected a mesh of dp, fsdp and tp, found {others[0]}.",
            f"compute.{field}={advice}",
        )
    te_layers.check_library(recipe, mesh.devices.flat[0])


def _check_idiom(config: TrainConfig, mesh: Mesh) -> None:
    if config.idiom in ("nnx", "split"):
        return
    if not isinstance(config.model, GPTConfig) or config.model.dropout:
        raise InputError(
            f"idiom={config.idiom}: expected a GPT without dropout, found {config.workload}.",
            "nnx and split train every model",
        )
    changed = [name for name, value in dataclasses.asdict(config.compute).items() if value != getattr(Compute(), name)]
    if changed:
        raise InputError(
            f"idiom={config.idiom}: expected compute.{changed[0]} {getattr(Compute(), changed[0])}, "
            f"found {getattr(config.compute, changed[0])}.",
            "nnx and split compute in every way",
        )
    used = [short for short, long in AXES.items() if mesh.shape[long] > 1 and (long not in BATCH or long == "fsdp")]
    if used:
        raise InputError(
            f"--mesh: idiom={config.idiom} splits the batch alone, expected dp or ep, found {used[0]}.",
            "nnx and split use every axis",
        )
