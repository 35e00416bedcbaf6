"""Six small trainings of `nightjar_models`, each a compiled function of seed and batches.

In: a `Plant` and a seed. Out: the loss of each step, or of held-out examples. Models, data, schedules and optimizers
are the presets' own, at sizes that train in a second; a plant changes one thing. The same seed has the same
initialisation and data order, so that two plants are compared seed by seed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
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
from nightjar_models.presets.sizes import GPTConfig, LlamaConfig, MoEConfig, T5Config, VAEConfig, ViTConfig
from nightjar_models.training.optimizer import make_optimizer
from nightjar_models.training.start import nudge
from nightjar_models.training.step import weigh
from nightjar_models.training.tasks import find_task

Gradients = list[jax.Array]
Batches = dict[str, NDArray[Any]]  # of each array [steps, batch, ...]
EVERY = 10  # steps between two evaluations


def _shape(workload: str, model: Any, **others: Any) -> TrainConfig:
    usual = {"steps": 100, "schedule_steps": 100, "warmup_steps": 20, "batch_size": 16, "learning_rate": 3e-3}
    return TrainConfig(workload=workload, model=model, **(usual | others))


CONFIGS = {
    "gpt": _shape(
        "gpt",
        GPTConfig(length=32, width=32, layers=2, heads=2, feed_forward=128),
        steps=300,
        schedule_steps=300,
        warmup_steps=40,
    ),
    "llama": _shape("llama", LlamaConfig(length=32, width=32, layers=2, heads=4, groups=2, feed_forward=64)),
    "t5": _shape(
        "t5",
        T5Config(
            vocabulary=32, length=12, target_length=16, width=32, layers=1, heads=2, head_width=16, feed_forward=64
        ),
        optimizer="adafactor",
        batch_size=32,
        learning_rate=1e-2,
    ),
    "vit": _shape(
        "vit",
        ViTConfig(patch=4, width=32, layers=2, heads=2, feed_forward=64, dropout=0.1, smoothing=0.1),
        optimizer="sgd",
        batch_size=64,
        learning_rate=0.1,
        weight_decay=1e-3,
    ),
    "vae": _shape("vae", VAEConfig(feed_forward=64, latent=8), optimizer="injected", batch_size=64, learning_rate=2e-3),
    "moe": _shape(
        "moe",
        MoEConfig(length=32, width=32, layers=2, heads=4, groups=2, feed_forward=32, experts=4, routing_length=32),
        optimizer="muon",
    ),
}


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Plant:
    """One way to train.

    Attributes:
        name: for people.
        workload: which of `CONFIGS`.
        config: what is configured otherwise.
        patch: what is patched while the program is made.
        optimizer: makes another optimizer of a config.
        before: changes the parameters that a step computes with.
        gradients: changes the gradients before the optimizer sees them: (parameter paths, gradients, step).
        parameters: changes the parameters after each step.
        batches: changes the batches of a seed.
        accumulate: microbatches whose gradients are averaged.
        combine: how their losses and gradients become one.
        stale: the update uses the gradients of the step before.
        stale_keys: the model's random state is the same in each step.
        nudged: each parameter starts one unit in the last place higher or lower.
        held_out: the curve is that of held-out examples, every tenth step.
        evaluate: makes the model that is evaluated.
        bf16: layers compute in bfloat16.
        program: the plant whose compiled program serves this one too, where only the batches differ.
    """

    name: str
    workload: str = "gpt"
    config: dict[str, Any] = dataclasses.field(default_factory=dict)
    patch: Callable[[], AbstractContextManager[Any]] = nullcontext
    optimizer: Callable[[TrainConfig], optax.GradientTransformation] = make_optimizer
    before: Callable[[Any], Any] = lambda parameters: parameters
    gradients: Callable[[list[str], Gradients, jax.Array], Gradients] = lambda paths, gradients, step: gradients
    parameters: Callable[[Any], Any] = lambda parameters: parameters
    batches: Callable[[Batches, int], Batches] = lambda batches, seed: batches
    accumulate: int = 1
    combine: Callable[..., jax.Array] = lambda *values: sum(values) / len(values)
    stale: bool = False
    stale_keys: bool = False
    nudged: bool = False
    held_out: bool = False
    evaluate: Callable[[Any], Any] = lambda model: nnx.view(model, raise_if_not_found=False, deterministic=True)
    bf16: bool = False
    program: Plant | None = None

    @cache  # noqa: B019 - plants live as long as the bench, and each is compiled once
    def in_bf16(self) -> Plant:
        return dataclasses.replace(self, bf16=True)


@cache
def train(plant: Plant, seed: int) -> NDArray[np.float64]:
    """The loss of every step, shape (steps,); or that of held-out examples, shape (steps / 10,)."""
    batches = plant.batches(_draw_batches(plant.workload, seed), seed)
    with plant.patch():
        curve = _make_program(plant.program or plant)(seed, batches, plant.nudged)
    return np.asarray(curve, dtype=np.float64)


@cache
def _draw_batches(workload: str, seed: int) -> Batches:
    config = CONFIGS[workload]
    source = train_batches(find_task(config).read(), config.batch_size, seed)
    drawn = [next(source) for _ in range(config.steps)]
    return {name: np.stack([batch[name] for batch in drawn]) for name in drawn[0]}


@cache
def held_out(workload: str, count: int) -> Mapping[str, NDArray[Any]]:
    data = find_task(CONFIGS[workload]).read().held_out
    examples = [data[index] for index in range(count)]
    return {name: np.stack([example[name] for example in examples]) for name in examples[0]}


@cache
def _make_program(plant: Plant) -> Callable[[int, Batches, bool], jax.Array]:
    """The whole training as one compiled function of seed, batches and whether the parameters are nudged."""
    config = dataclasses.replace(CONFIGS[plant.workload], **plant.config)
    if plant.bf16:
        config = dataclasses.replace(config, compute=Compute(dtype="bf16"))
    task, optimizer = find_task(config), plant.optimizer(config)
    divided: Any = nnx.split(nnx.eval_shape(lambda: task.build(nnx.Rngs(0))), nnx.Param, ...)
    graph, learned, others = divided
    structure, others_structure = jax.tree.structure(learned), jax.tree.structure(others)
    named = jax.tree.leaves_with_path(nnx.to_pure_dict(learned))
    paths = [".".join(str(key.key) for key in path) for path, _ in named]
    unseen = held_out(plant.workload, config.batch_size)

    def rebuild(parameters: Any, others: Any) -> Any:
        leaves = jax.tree.leaves(plant.before(parameters))
        states = jax.tree.unflatten(structure, leaves), jax.tree.unflatten(others_structure, others)
        return nnx.merge(graph, *states)

    def loss_of(parameters: Any, others: Any, batch: Mapping[str, jax.Array]) -> tuple[jax.Array, Any]:
        model = rebuild(parameters, others)
        return weigh(task.measure(model, batch))[0], jax.tree.leaves(nnx.state(model, nnx.Not(nnx.Param)))

    def step(carry: tuple[Any, ...], batch: Mapping[str, jax.Array]) -> tuple[tuple[Any, ...], jax.Array]:
        parameters, others, memory, before, number = carry
        computed = [
            jax.value_and_grad(loss_of, has_aux=True)(parameters, others, part)
            for part in cut_batch(batch, plant.accumulate)
        ]
        loss = sum(value for (value, _), _ in computed) / plant.accumulate
        found = jax.tree.map(plant.combine, *(gradients for _, gradients in computed))
        leaves, tree = jax.tree.flatten(before if plant.stale else found)
        used = jax.tree.unflatten(tree, plant.gradients(paths, leaves, number))
        updates, memory = optimizer.update(used, memory, parameters)
        parameters = plant.parameters(optax.apply_updates(parameters, updates))
        moved = others if plant.stale_keys else computed[-1][0][1]
        return (parameters, moved, memory, found, number + 1), jnp.asarray(loss)

    def evaluate(carry: tuple[Any, ...]) -> jax.Array:
        parameters, others, *_ = carry
        return weigh(task.measure(plant.evaluate(rebuild(parameters, others)), unseen))[0]

    def stretch(carry: tuple[Any, ...], batches: Mapping[str, jax.Array]) -> tuple[tuple[Any, ...], jax.Array]:
        carry, losses = jax.lax.scan(step, carry, batches)
        return carry, evaluate(carry)[None] if plant.held_out else losses

    def run(seed: jax.Array, batches: Mapping[str, jax.Array], nudged: jax.Array) -> jax.Array:
        divided: Any = nnx.split(task.build(nnx.Rngs(jax.random.key(seed))), nnx.Param, ...)
        parameters: Any = nnx.to_pure_dict(divided[1])
        parameters = jax.tree.map(partial(jnp.where, nudged), nudge(parameters, seed), parameters)
        zeros = jax.tree.map(jnp.zeros_like, parameters)
        start = (parameters, jax.tree.leaves(divided[2]), optimizer.init(parameters), zeros, jnp.int32(0))
        cut = jax.tree.map(lambda values: values.reshape(-1, EVERY, *values.shape[1:]), dict(batches))
        return jax.lax.scan(stretch, start, cut)[1].reshape(-1)

    return jax.jit(run)


def cut_batch(batch: Mapping[str, jax.Array], parts: int) -> list[dict[str, jax.Array]]:
    pieces = {name: jnp.split(values, parts) for name, values in batch.items()}
    return [{name: values[part] for name, values in pieces.items()} for part in range(parts)]
