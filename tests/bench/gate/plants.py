"""A small GPT, trained as it should be, with a harmless change, or with a planted fault: the curves to judge.

In: a `Plant` and a seed. Out: the loss of each step. Model, data, schedule and optimizer are those of `nightjar_models`
at a size that trains in a second; a plant changes one thing. The same seed has the same initialisation and data order,
so two plants are compared seed by seed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from numpy.typing import NDArray

from nightjar_models.data.pipeline import train_batches
from nightjar_models.presets.config import Compute, TrainConfig
from nightjar_models.presets.sizes import GPTConfig
from nightjar_models.training.optimizer import find_decayed, make_optimizer
from nightjar_models.training.tasks import find_task

CONFIG = TrainConfig(
    workload="planted",
    model=GPTConfig(length=32, width=32, layers=2, heads=2, feed_forward=128),
    steps=300,
    schedule_steps=300,
    warmup_steps=40,
    batch_size=16,
    learning_rate=3e-3,
    weight_decay=0.1,
    beta2=0.99,
)

Gradients = list[jax.Array]
Batches = NDArray[np.int32]  # [steps, batch, length + 1]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Plant:
    """One way to train.

    Attributes:
        name: for people.
        config: what is configured otherwise.
        optimizer: makes another optimizer of a config.
        gradients: changes the gradients before the optimizer sees them: (parameter paths, gradients, step).
        batches: changes the batches of a seed.
        accumulate: microbatches whose gradients are averaged.
        stale: the update uses the gradients of the step before.
        bf16: layers compute in bfloat16.
        program: the plant whose compiled program serves this one too, where only the batches differ.
    """

    name: str
    config: dict[str, Any] = dataclasses.field(default_factory=dict)
    optimizer: Callable[[TrainConfig], optax.GradientTransformation] = make_optimizer
    gradients: Callable[[list[str], Gradients, jax.Array], Gradients] = lambda paths, gradients, step: gradients
    batches: Callable[[Batches, int], Batches] = lambda batches, seed: batches
    accumulate: int = 1
    stale: bool = False
    bf16: bool = False
    program: Plant | None = None

    @cache  # noqa: B019 - plants live as long as the bench, and each is compiled once
    def in_bf16(self) -> Plant:
        """The same in bfloat16."""
        return dataclasses.replace(self, bf16=True)


@cache
def train(plant: Plant, seed: int) -> NDArray[np.float64]:
    """The loss of every step, shape (steps,)."""
    batches = plant.batches(_batches(seed), seed)
    return np.asarray(_program(plant.program or plant)(seed, batches), dtype=np.float64)


@cache
def _batches(seed: int) -> Batches:
    source = train_batches(find_task(CONFIG).read(), CONFIG.batch_size, seed)
    return np.stack([next(source)["tokens"] for _ in range(CONFIG.steps)])


@cache
def held_out(count: int) -> NDArray[np.int32]:
    """Examples that training must never see."""
    data = find_task(CONFIG).read().held_out
    return np.stack([data[index]["tokens"] for index in range(count)])


@cache
def _program(plant: Plant) -> Callable[[int, Batches], jax.Array]:
    """The whole training as one compiled function of seed and batches."""
    config = dataclasses.replace(CONFIG, **plant.config)
    if plant.bf16:
        config = dataclasses.replace(config, compute=Compute(dtype="bf16"))
    task, optimizer = find_task(config), plant.optimizer(config)
    graph, abstract = nnx.split(nnx.eval_shape(lambda: task.build(nnx.Rngs(0))))
    paths = [".".join(map(str, path)) for path, _ in nnx.to_flat_state(abstract)]

    def loss_of(parameters: Any, tokens: jax.Array) -> jax.Array:
        model = nnx.merge(graph, abstract)
        nnx.update(model, parameters)
        return task.measure(model, {"tokens": tokens})["loss"].mean()

    def gradient(parameters: Any, tokens: jax.Array) -> tuple[jax.Array, Any]:
        parts = tokens.reshape(plant.accumulate, -1, tokens.shape[-1])
        found = [jax.value_and_grad(loss_of)(parameters, part) for part in parts]
        total = jax.tree.map(lambda *values: sum(values) / len(values), *found)
        return total[0], total[1]

    def step(carry: tuple[Any, ...], tokens: jax.Array) -> tuple[tuple[Any, ...], jax.Array]:
        parameters, memory, before, number = carry
        loss, found = gradient(parameters, tokens)
        leaves, tree = jax.tree.flatten(before if plant.stale else found)
        used = jax.tree.unflatten(tree, plant.gradients(paths, leaves, number))
        updates, memory = optimizer.update(used, memory, parameters)
        return (optax.apply_updates(parameters, updates), memory, found, number + 1), loss

    def run(seed: jax.Array, batches: jax.Array) -> jax.Array:
        parameters: Any = nnx.to_pure_dict(nnx.state(task.build(nnx.Rngs(jax.random.key(seed)))))
        start = (parameters, optimizer.init(parameters), jax.tree.map(jnp.zeros_like, parameters), jnp.int32(0))
        return jax.lax.scan(step, start, batches)[1]

    return jax.jit(run)


# What a plant does.


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
    """Loses the whole gradient of one step in `every`."""
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


def _replaced(share: float, source: Callable[[Batches, np.random.Generator], Batches]) -> Callable[..., Batches]:
    """Replaces a share of the examples."""

    def replaced(batches: Batches, seed: int) -> Batches:
        random = np.random.default_rng(seed)
        flat = batches.reshape(-1, batches.shape[-1]).copy()
        chosen = np.flatnonzero(random.random(len(flat)) < share)
        flat[chosen] = source(flat, random)[: len(chosen)]
        return flat.reshape(batches.shape)

    return replaced


def permuted(batches: Batches, seed: int, number: int = 0) -> Batches:
    """The examples of each batch in another order."""
    random = np.random.default_rng([number, seed])
    return np.stack([batch[random.permutation(len(batch))] for batch in batches])


def _as_bf16(paths: list[str], gradients: Gradients, step: jax.Array) -> Gradients:
    return [g.astype(jnp.bfloat16).astype(jnp.float32) for g in gradients]


def _flushed(paths: list[str], gradients: Gradients, step: jax.Array) -> Gradients:
    """Loses what is below a thousandth of each gradient's largest value, as a loss scale that is too small does."""
    return [jnp.where(jnp.abs(g) < 1e-3 * jnp.abs(g).max(), 0.0, g) for g in gradients]


def _next_tokens(batches: Batches, seed: int) -> Batches:
    """Every window one token later: positions that are off by one."""
    return np.roll(batches, -1, axis=-1)


def _half_batches(batches: Batches, seed: int) -> Batches:
    """The second half of each batch is the first once more: half of the data is never seen."""
    half = batches.shape[1] // 2
    return np.concatenate([batches[:, :half], batches[:, :half]], axis=1)


def _repeated(batches: Batches, seed: int) -> Batches:
    """Every tenth step trains on the batch of the step before."""
    changed = batches.copy()
    changed[10::10] = batches[9:-1:10]
    return changed


def _copied_targets(batches: Batches, seed: int) -> Batches:
    """Every 50th token is shown one position early: a leak of the future."""
    leaked = batches.copy()
    leaked[..., 0:-1:50] = batches[..., 1::50][..., : leaked[..., 0:-1:50].shape[-1]]
    return leaked


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
    Plant(name="1 % of the data leaked from held-out", batches=_replaced(0.01, lambda flat, _: held_out(1024))),
    Plant(
        name="1 % of the data duplicated",
        batches=_replaced(0.01, lambda flat, random: flat[random.permutation(len(flat))]),
    ),
    Plant(name="layer-norm gain not trained", gradients=_only("blocks.0.attention_norm.scale", jnp.zeros_like)),
    Plant(name="schedule one step late", optimizer=partial(_adamw, late=-1)),
    Plant(name="bfloat16, undeclared", bf16=True),
)

# Faults that a new jaxlib could hide, besides those above: of the optimizer, the gradients and the data.
MORE_FAULTS = (
    Plant(name="warm-up twice as long", config={"warmup_steps": 80}),
    Plant(name="schedule half as long again", config={"schedule_steps": 450}),
    Plant(name="weight decay doubled", config={"weight_decay": 0.2}),
    Plant(name="gradients clipped at half the norm", config={"clip_norm": CONFIG.clip_norm / 2}),
    Plant(name="learning rate +2 %", config={"learning_rate": 3.06e-3}),
    Plant(name="gradients in bfloat16", gradients=_as_bf16),
    Plant(name="small gradients flushed to zero", gradients=_flushed),
    Plant(name="gradients 1 % too large", gradients=_scaled(1.01)),
    Plant(name="embedding gradient halved", gradients=_only("embed", lambda g: g * 0.5)),
    Plant(name="one attention not trained", gradients=_only("blocks.1.attention", jnp.zeros_like)),
    Plant(name="positions off by one", batches=_next_tokens, program=REFERENCE),
    Plant(name="half of each batch repeated", batches=_half_batches, program=REFERENCE),
    Plant(name="every tenth batch repeated", batches=_repeated, program=REFERENCE),
    Plant(name="a leak of the future", batches=_copied_targets, program=REFERENCE),
    Plant(name="gradient lost every 30th step", gradients=_skipped(30)),
)
