"""The optimizer of a run, as its field uses it.

In: a config. Out: an Optax transformation: clipping, the update and its schedule, and which parameters decay.

| `optimizer` | update | used by |
|---|---|---|
| `adamw` | Adam with decoupled decay (Loshchilov and Hutter 2019) | GPT, Llama |
| `adafactor` | factored second moments (Shazeer and Stern 2018) | T5 |
| `muon` | orthogonal momentum for the matrices of hidden layers (Jordan 2024), AdamW for the rest | MoE |
| `sgd` | Nesterov's momentum | ViT |
| `injected` | AdamW whose learning rate is part of its state, so that a program can read and set it | VAE |
"""

from __future__ import annotations

from typing import Any

import jax
import optax
from optax import contrib

from nightjar_models.presets.config import TrainConfig

DECAYED = {"kernel", "embedding", "position_embedding"}  # names of parameters; norms and biases do not decay
MOMENTUM = 0.9
CONSISTENT = 0.2  # root mean square of Muon's update, about AdamW's
HIDDEN = {"blocks", "encoder", "decoder"}  # attributes that hold the layers between a model's first map and its last
INTO_HEADS, OUT_OF_HEADS = ("query", "key", "value"), "out"  # of attention: kernels [D, H, K] and [H, K, D]


def make_schedule(config: TrainConfig) -> optax.Schedule:
    """The learning rate rises linearly from zero, then falls along a cosine."""
    peak, warmup = config.learning_rate, config.warmup_steps
    fall = optax.cosine_decay_schedule(peak, config.schedule_steps - warmup, alpha=config.final_fraction)
    return optax.join_schedules([optax.linear_schedule(0.0, peak, warmup), fall], [warmup])


def find_decayed(parameters: Any) -> Any:
    """Which parameters decay: matrices and tables, by the name that Flax gives them."""
    return jax.tree.map_with_path(lambda path, _: any(_name(key) in DECAYED for key in path), parameters)


def find_matrices(parameters: Any) -> Any:
    """Muon's share: kernels of hidden layers, by the axes that they sum over and make; None for all else.

    Axes before these are layers or experts, each of them a matrix of its own.
    """

    def describe(path: Any, _: Any) -> contrib.MuonDimensionNumbers | None:
        names = [_name(key) for key in path]
        if HIDDEN.isdisjoint(names) or "kernel" not in names:
            return None
        layer = names[names.index("kernel") - 1]
        if layer in INTO_HEADS:
            return contrib.MuonDimensionNumbers((-3,), (-2, -1))
        if layer == OUT_OF_HEADS:
            return contrib.MuonDimensionNumbers((-3, -2), (-1,))
        return contrib.MuonDimensionNumbers((-2,), (-1,))

    return jax.tree.map_with_path(describe, parameters)


def _name(key: Any) -> Any:
    return getattr(key, "key", getattr(key, "name", None))


def make_optimizer(config: TrainConfig) -> optax.GradientTransformation:
    """The transformation of a config; with `accumulate_steps` it moves the parameters once in that many steps."""
    schedule, decay = make_schedule(config), config.weight_decay
    match config.optimizer:
        case "adamw":
            update = optax.adamw(schedule, b2=config.beta2, weight_decay=decay, mask=find_decayed)
        case "injected":
            make = optax.inject_hyperparams(optax.adamw, static_args=("mask",))
            update = make(learning_rate=schedule, b2=config.beta2, weight_decay=decay, mask=find_decayed)
        case "adafactor":
            update = optax.adafactor(schedule, weight_decay_rate=None, clipping_threshold=1.0)
        case "muon":
            update = contrib.muon(
                schedule,
                weight_decay=decay,
                adam_b2=config.beta2,
                muon_weight_dimension_numbers=find_matrices,
                consistent_rms=CONSISTENT,
            )
        case "sgd":
            decayed = optax.add_decayed_weights(decay, mask=find_decayed)
            update = optax.chain(decayed, optax.sgd(schedule, momentum=MOMENTUM, nesterov=True))
    chain = optax.chain(optax.clip_by_global_norm(config.clip_norm), update)
    if config.accumulate_steps > 1:
        return optax.MultiSteps(chain, every_k_schedule=config.accumulate_steps).gradient_transformation()
    return chain
