"""Fifteen faults as programs have had them: of layers, masks, random numbers, types and sums, in six workloads."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from nightjar_models.presets.config import TrainConfig
from nightjar_models.training.optimizer import make_schedule
from tests.bench.gate.planted.faults import permuted
from tests.bench.gate.planted.program import CONFIGS, Batches, Plant
from tests.bench.gate.planted.wrong_layers import (
    patch_attention,
    patch_distances,
    patch_epsilon,
    patch_padding,
    patch_places,
    patch_rotations,
)


def _to_bf16(parameters: Any) -> Any:
    return jax.tree.map(lambda values: values.astype(jnp.bfloat16).astype(jnp.float32), parameters)


def _shifted_positions(parameters: Any) -> Any:
    return parameters | {"position_embedding": jnp.roll(parameters["position_embedding"], 1, axis=0)}


def _decay_all(config: TrainConfig) -> optax.GradientTransformation:
    adamw = optax.adamw(make_schedule(config), b2=config.beta2, weight_decay=config.weight_decay)
    return optax.chain(optax.clip_by_global_norm(config.clip_norm), adamw)


def _same_keys(batches: Batches, seed: int) -> Batches:
    """The random numbers of the first step in every step."""
    keys = batches["key"]
    return batches | {"key": np.broadcast_to(keys[:1], keys.shape)}


def _written_out(**options: Any) -> Callable[[], Any]:
    return partial(patch_attention, **options)


REFERENCES = {
    (workload, held_out): Plant(name=f"{workload}, as it should be", workload=workload, held_out=held_out)
    for workload in CONFIGS
    for held_out in (False, True)
}
NUDGED = ("vit", "moe")  # dropout, which another order of the examples changes, and a router, which amplifies rounding


def _replicate(plant: Plant) -> Plant:
    """The same once more, up to rounding, as the policies say for the workload."""
    about: dict[str, Any] = {"workload": plant.workload, "held_out": plant.held_out, "program": plant}
    if plant.workload in NUDGED:
        return Plant(name=f"{plant.name}, nudged", nudged=True, **about)
    return Plant(name=f"{plant.name}, batch permuted", batches=permuted, **about)


REPLICAS = {key: _replicate(plant) for key, plant in REFERENCES.items()}

PROGRAM_FAULTS = (
    Plant(name="gpt: master weights in bfloat16", parameters=_to_bf16),
    Plant(name="gpt: positions off by one", before=_shifted_positions),
    Plant(name="gpt: causal mask off by one (a leak of the future)", patch=_written_out(ahead=1)),
    Plant(name="gpt: softmax in bfloat16", patch=_written_out(softmax=jnp.bfloat16)),
    Plant(name="gpt: gains and biases decay", optimizer=_decay_all),
    Plant(name="gpt: norms' epsilon 1e-6 for 1e-5", patch=partial(patch_epsilon, 1e-6)),
    Plant(name="gpt: only the last microbatch counts", accumulate=2, combine=lambda *values: values[-1]),
    Plant(name="llama: attention scaled twice", workload="llama", patch=_written_out(scale=8**-0.5)),
    Plant(name="llama: rotary positions in bfloat16", workload="llama", patch=patch_rotations),
    Plant(name="t5: padding is seen (a missing mask)", workload="t5", patch=patch_padding),
    Plant(name="t5: relative positions off by one", workload="t5", patch=patch_distances),
    Plant(name="vit: dropout at evaluation", workload="vit", held_out=True, evaluate=lambda model: model),
    Plant(name="vit: the same dropout in each step", workload="vit", stale_keys=True),
    Plant(name="vae: the same noise in each step", workload="vae", batches=_same_keys),
    Plant(name="moe: experts take one token less", workload="moe", patch=patch_places),
)

HARMLESS_PROGRAMS = (
    Plant(name="gpt: attention written out", patch=_written_out()),
    Plant(name="llama: attention written out", workload="llama", patch=_written_out()),
)
