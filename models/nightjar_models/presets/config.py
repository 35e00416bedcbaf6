"""Frozen training configurations, and their overrides by `--set key=value`.

In: a preset's config and the user's overrides. Out: a new config, or an `InputError` that names the key, the value and
the expected one. Nothing here imports JAX, so that a wrong option is answered at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeVar

from nightjar_models.errors import InputError, did_you_mean
from nightjar_models.presets.sizes import ModelConfig, ViTConfig, check_least, check_sizes

Scalar = str | int | float | bool
DTYPES = {"f32": "float32", "bf16": "bfloat16"}  # by `compute.dtype`
Config = TypeVar("Config")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """How a step is computed; the mathematics stays the same, up to rounding.

    Attributes:
        dtype: of activations and matrix products, `f32` or `bf16`; parameters and optimizer stay float32.
        remat: values kept for the backward pass: `none` recomputes nothing, `full` all of it, `dots` keeps the results
            of matrix products, `dots_no_batch` those without batch dimensions (weights times activations);
            `offload_dots` keeps the latter in the host's memory, `offload_inputs` each layer's input.
        scan_layers: one traced layer in a `jax.lax.scan` over stacked parameters, in place of one per layer.
        attention: `jax.nn.dot_product_attention` by `xla` or `cudnn` (fused, on GPUs; if that is not possible the log
            says why, and `xla` computes it); or `ring`, over the mesh's sequence.
        norm: RMSNorm by `flax`, in C++ or CUDA (`ffi`), or in `pallas`.
        experts: of a mixture: `places`, as many for each expert (GShard), or `ragged`, as many as want it, by
            `jax.lax.ragged_dot`: there no token is passed by, so the mathematics differs if one would be.
        embedding_sum: type in which the gradient of a table of embeddings is summed: the `activations`', or `f32`.
        products: of the feed-forward layers' matrices: `plain`, in `dtype`; `fp8` (`precision.py`); or by a recipe of
            TransformerEngine (`te_layers.py`).
        layers: `plain`; or TransformerEngine's own (`models/te_block.py`), which compute in bf16, with the products'
            recipe if it has one: `te_feed_forward`, a norm and the feed-forward layer behind it; `te_block`, all of it.
        microbatches: the number of parts into which a pipeline cuts the batch.
        accumulate: microbatches whose gradients are added up before the optimizer steps.
    """

    dtype: str = "f32"
    remat: str = "none"
    scan_layers: bool = False
    attention: str = "xla"
    norm: str = "flax"
    experts: str = "places"
    embedding_sum: str = "activations"
    products: str = "plain"
    layers: str = "plain"
    microbatches: int = 4
    accumulate: int = 1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where data come from.

    Attributes:
        images: a vision transformer's: a folder of `CLASS/*.jpg`; empty for scikit-learn's digits.
        decoder: of those files, `pillow` or `dali`.
        loader: how Grain reads any data: `map`, `workers`, `arrayrecord` or `sampler` (`data/pipeline.py`).
    """

    images: str = ""
    decoder: str = "pillow"
    loader: str = "map"


CHOICES = {
    "idiom": ("nnx", "split", "linen", "pure", "shard_map"),
    "optimizer": ("adamw", "adafactor", "muon", "sgd", "injected"),
    "compute.dtype": tuple(DTYPES),
    "compute.remat": ("none", "full", "dots", "dots_no_batch", "offload_dots", "offload_inputs"),
    "compute.attention": ("xla", "cudnn", "ring"),
    "compute.norm": ("flax", "ffi", "pallas"),
    "compute.experts": ("places", "ragged"),
    "compute.embedding_sum": ("activations", "f32"),
    "compute.products": ("plain", "fp8", "te_delayed", "te_mxfp8", "te_nvfp4"),
    "compute.layers": ("plain", "te_feed_forward", "te_block"),
    "data.decoder": ("pillow", "dali"),
    "data.loader": ("map", "workers", "arrayrecord", "sampler"),
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """One training run; every number that changes its curve, except seed and mesh.

    Attributes:
        workload: name of the preset.
        model: sizes; its type chooses model and data (`tasks.py`).
        compute: how a step is computed.
        data: the source of images, and the way to read them.
        idiom: how the training loop is written: `nnx`, an `nnx.jit` over model and optimizer; `split`, a `jax.jit`
            over their arrays; of a GPT also `linen`, `pure` or `shard_map` (`training/idioms.py`).
        optimizer: `adamw`, `adafactor`, `muon`, `sgd` or `injected` (`training/optimizer.py`).
        steps: the step to stop at.
        first_step: the first step, with fresh parameters: schedule, data and the optimizer's counters start at this
            step. A late step is compared before rounding has grown (docs/statistics.md).
        schedule_steps: the number of updates in which the learning rate falls; apart from `steps`, so that a short run
            is a prefix of a long one.
        warmup_steps: updates over which the learning rate rises from zero.
        batch_size: sequences or images per step, over all devices.
        learning_rate: the peak.
        final_fraction: the learning rate at the end of the schedule, as a fraction of the peak.
        weight_decay: of matrices and tables, with `muon` of hidden layers' matrices; Adafactor has none.
        beta2: Adam's decay of the second moment.
        clip_norm: the largest global norm of a gradient.
        accumulate_steps: steps whose gradients `optax.MultiSteps` averages before it moves the parameters once.
    """

    workload: str
    model: ModelConfig
    compute: Compute = Compute()
    data: Source = Source()
    idiom: str = "nnx"
    optimizer: str = "adamw"
    steps: int
    schedule_steps: int
    warmup_steps: int
    batch_size: int
    learning_rate: float
    final_fraction: float = 0.1
    weight_decay: float = 0.1
    beta2: float = 0.99
    clip_norm: float = 1.0
    accumulate_steps: int = 1
    first_step: int = 0


def flatten(config: TrainConfig) -> dict[str, Scalar]:
    """The config as names to scalars; the model's under `model.`, ways of computing under `compute.`, and `data.`."""
    flat: dict[str, Scalar] = {}
    for name, value in dataclasses.asdict(config).items():
        flat |= {f"{name}.{k}": v for k, v in value.items()} if isinstance(value, dict) else {name: value}
    return flat


DEFAULTS: dict[str, Scalar] = {  # of choices that `describe_config` leaves out
    **{f"compute.{name}": value for name, value in dataclasses.asdict(Compute()).items()},
    **{f"data.{name}": value for name, value in dataclasses.asdict(Source()).items()},
    "first_step": 0,
}


def describe_config(config: TrainConfig) -> dict[str, Scalar]:
    """`flatten` without the choices that stay at their defaults, so that a new choice leaves old results comparable."""
    return {name: value for name, value in flatten(config).items() if DEFAULTS.get(name) != value}


def override(config: TrainConfig, settings: Sequence[str]) -> TrainConfig:
    """Applies `key=value` settings.

    Args:
        settings: such as `["learning_rate=0.01", "model.layers=4", "compute.dtype=bf16"]`.
    """
    values = {key: value for key, value in flatten(config).items() if key != "workload"}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals:
            raise InputError(f"--set {setting}: expected key=value.", f"keys are {', '.join(values)}")
        if key not in values:
            hint = did_you_mean(key, values)
            raise InputError(f"--set {setting}: unknown key {key!r}: expected one of {', '.join(values)}.", hint)
        value: Any = _parse(setting, text, type(values[key]))
        owner, dot, name = key.partition(".")
        if dot:
            value = _with(getattr(config, owner), name, value)
        config = _with(config, owner, value)
    _check(config)
    return config


def _with(config: Config, field: str, value: Any) -> Config:
    changed: Config = dataclasses.replace(config, **{field: value})  # type: ignore[type-var]
    return changed


def _parse(setting: str, text: str, kind: type[Scalar]) -> Scalar:
    if kind is bool:
        if text not in ("true", "false"):
            raise InputError(f"--set {setting}: expected true or false.")
        return text == "true"
    try:
        return kind(text)
    except ValueError:
        raise InputError(f"--set {setting}: expected {'a number' if kind is float else 'an integer'}.") from None


_FROM_ZERO = {
    *("first_step", "warmup_steps", "learning_rate", "final_fraction", "weight_decay", "beta2"),
    *("model.balance", "model.unconditional", "model.dropout", "model.smoothing"),
}


def _check_layers(compute: Compute) -> None:
    if compute.layers != "plain" and compute.products == "fp8":
        raise InputError(
            f"compute.layers={compute.layers}: expected compute.products plain or a recipe of TransformerEngine, "
            "found fp8.",
            "fp8 is Flax's; compute.products=te_delayed scales as it does",
        )
    if compute.layers == "te_block" and compute.attention not in ("xla", "cudnn"):
        raise InputError(
            f"compute.layers=te_block: expected compute.attention xla or cudnn, found {compute.attention}.",
            "its attention is TransformerEngine's own; compute.layers=te_feed_forward leaves attention as it is",
        )


def _check(config: TrainConfig) -> None:
    for key, value in flatten(config).items():
        if isinstance(value, bool):
            continue
        if isinstance(value, str):
            if value not in (choices := CHOICES.get(key, (value,))):
                hint = did_you_mean(value, choices)
                raise InputError(f"{key}: expected one of {', '.join(choices)}, found {value!r}.", hint)
        elif not (value >= 0 if key in _FROM_ZERO else value > 0):
            expected = "more than zero"
            if key in _FROM_ZERO:
                expected = "zero or more"
            raise InputError(f"{key}: expected {expected}, found {value}.")
    if config.beta2 >= 1:
        raise InputError(f"beta2: expected less than one, found {config.beta2}.")
    if config.first_step >= config.steps:
        raise InputError(f"first_step: expected fewer than steps ({config.steps}), found {config.first_step}.")
    if config.warmup_steps >= config.schedule_steps:
        raise InputError(
            f"warmup_steps: expected fewer than schedule_steps ({config.schedule_steps}), found {config.warmup_steps}."
        )
    if config.compute.experts == "ragged" and (products := config.compute.products) != "plain":
        raise InputError(
            f"compute.experts=ragged: expected compute.products plain, found {products}.",
            "compute.experts=places multiplies in FP8",
        )
    _check_layers(config.compute)
    if config.batch_size % config.compute.accumulate:
        raise InputError(
            f"batch_size: expected a multiple of compute.accumulate ({config.compute.accumulate}), "
            f"found {config.batch_size}."
        )
    _check_source(config)
    check_sizes(config.model)


def _check_source(config: TrainConfig) -> None:
    if config.data.images:
        if not isinstance(config.model, ViTConfig):
            raise InputError(
                f"data.images: {config.workload} does not train on photographs.", "train a vit_ preset on them"
            )
        if config.model.channels != 3:
            channels = config.model.channels
            raise InputError(f"model.channels: expected 3 for photographs, found {channels}.", "--set model.channels=3")
        return
    if config.data.decoder != Source().decoder:
        raise InputError(
            f"data.decoder={config.data.decoder}: the digits are not decoded.", "--set data.images=FOLDER has JPEGs"
        )
    if isinstance(config.model, ViTConfig):
        check_least(config.model, "classes", 10, "digits")
