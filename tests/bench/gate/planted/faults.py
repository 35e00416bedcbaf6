"""Harmless changes of a small GPT's training, and fifteen faults of its optimizer, its gradients and its data."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import NDArray

from nightjar_models.presets.config import TrainConfig
from nightjar_models.training.optimizer import find_decayed
from tests.bench.gate.planted.program import Batches, Gradients, Plant, held_out

Tokens = NDArray[np.int32]  # [steps, batch, length + 1]


def _only(part: str, change: Callable[[jax.Array], jax.Array]) -> Callable[..., Gradients]:
    def changed(paths: list[str], gradients: Gradients, step: jax.Array) -> Gradients:
        assert any(part in path for path in paths)
        return [change(g) if part in path else g for path, g in zip(paths, gradients, strict=True)]

    return changed


def _scaled(factor: float) -> Callable[..., Gradients]:
    return lambda paths, gradients, step: [g * factor for g in gradients]


def _noisy(size: float) -> Callable[..., Gradients]:
    """Adds noise of `size` times each gradient's root mean square."""

    def noisy(paths: list[str], gradients: Gradients, step: jax.Array) -> Gradients:
        keys = jax.random.split(jax.random.fold_in(jax.random.key(7), step), len(gradients))
        return [
            g + size * jnp.sqrt((g * g).mean()) * jax.random.normal(key, g.shape)
            for key, g in zip(keys, gradients, strict=True)
        ]

    return noisy


def _skipped(every: int) -> Callable[..., Gradients]:
    return lambda paths, gradients, step: [jnp.where(step % every == every - 1, 0.0, g) for g in gradients]


def _adamw(config: TrainConfig, *, eps: float = 1e-8, late: int = 0) -> optax.GradientTransformation:
    """The trainer's optimizer with another epsilon, or a schedule that is some steps late."""
    peak = config.learning_rate
    schedule = optax.warmup_cosine_decay_schedule(
        0.0, peak, config.warmup_steps, config.schedule_steps, peak * config.final_fraction
    )

    adamw = optax.adamw(
        lambda count: schedule(count + late),
        b2=config.beta2,
        eps=eps,
        weight_decay=config.weight_decay,
        mask=find_decayed,
    )
    return optax.chain(optax.clip_by_global_norm(config.clip_norm), adamw)


def _replaced(share: float, source: Callable[[Tokens, np.random.Generator], Tokens]) -> Callable[..., Batches]:
    def replaced(batches: Batches, seed: int) -> Batches:
        tokens, random = batches["tokens"], np.random.default_rng(seed)
        flat = tokens.reshape(-1, tokens.shape[-1]).copy()
        chosen = np.flatnonzero(random.random(len(flat)) < share)
        flat[chosen] = source(flat, random)[: len(chosen)]
        return {"tokens": flat.reshape(tokens.shape)}

    return replaced


def permuted(batches: Batches, seed: int, number: int = 0) -> Batches:
    random = np.random.default_rng([number, seed])
    steps, size = next(iter(batches.values())).shape[:2]
    orders = np.stack([random.permutation(size) for _ in range(steps)])
    return {name: values[np.arange(steps)[:, None], orders] for name, values in batches.items()}


REFERENCE = Plant(name="reference")

HARMLESS = (
    Plant(name="reordered sums (batch permuted)", batches=permuted, program=REFERENCE),
    Plant(name="gradient accumulation, 2 parts", accumulate=2),
    Plant(name="gradient accumulation, 4 parts", accumulate=4),
)

DECLARED = Plant(name="bfloat16, declared", bf16=True)

FAULTS = (
    Plant(name="learning rate +20 %", config={"learning_rate": 3.6e-3}),
    Plant(name="learning rate -20 %", config={"learning_rate": 2.4e-3}),
    Plant(name="no weight decay", config={"weight_decay": 0.0}),
    Plant(name="Adam epsilon 1e-6 for 1e-8", optimizer=partial(_adamw, eps=1e-6)),
    Plant(name="Adam beta2 0.999 for 0.99", config={"beta2": 0.999}),
    Plant(name="no gradient clipping", config={"clip_norm": 1e9}),
    Plant(name="gradient noise, 1 %", gradients=_noisy(0.01)),
    Plant(name="gradient lost every 100th step", gradients=_skipped(100)),
    Plant(name="stale gradients (one step)", stale=True),
    Plant(name="accumulated gradients summed, not averaged", accumulate=2, gradients=_scaled(2.0)),
    Plant(
        name="1 % of the data leaked from held-out",
        batches=_replaced(0.01, lambda flat, _: held_out("gpt", 1024)["tokens"]),
    ),
    Plant(
        name="1 % of the data duplicated",
        batches=_replaced(0.01, lambda flat, random: flat[random.permutation(len(flat))]),
    ),
    Plant(name="layer-norm gain not trained", gradients=_only("blocks.0.attention_norm.scale", jnp.zeros_like)),
    Plant(name="schedule one step late", optimizer=partial(_adamw, late=-1)),
    Plant(name="bfloat16, undeclared", bf16=True),
)
