"""The compiled functions of a run and the sharding of their arguments.

In: a config, its task and a mesh. Out: a `Program`: initial state, train step and evaluation step.

The step is jitted over flat lists of arrays, and the NNX module is assembled while tracing. Measured overhead of a
call at 64 / 334 / 658 arrays: 0.22 / 0.74 / 2.0 ms, where `nnx.jit` with `nnx.Optimizer` takes 3.2 / 20.6 / 54 ms.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jaxtyping import Array, Float

from nightjar_models.architectures.precision import Fp8Scaling
from nightjar_models.architectures.stack import LAYERS
from nightjar_models.parallel.sharding import Keys, batch_sharding, parameter_sharding, split, use_mesh
from nightjar_models.presets.config import TrainConfig
from nightjar_models.training.switches import check_switches
from nightjar_models.training.tasks import Scores, Task, check_axes

DTYPES = {"f32": jnp.float32, "bf16": jnp.bfloat16}
WEIGHT = "weight"  # not a score, but the weight of a batch in the mean of the others, where batches differ

Batch = Mapping[str, Array]


class State(NamedTuple):
    """What a step updates: the parameters as a flat list, and the optimizer's state."""

    parameters: list[Array]
    optimizer: optax.OptState


@dataclasses.dataclass(frozen=True, slots=True)
class Program:
    """The functions of a run, not yet compiled.

    Attributes:
        initialize: a seed to the first state, laid out over the mesh.
        train_step: state and batch to the next state and the loss before it; the old state is consumed.
        evaluate: parameters and batch to the model's scores.
        state: shapes, types and shardings of the state.
        batch: sharding of a batch.
        parameter_count: number of learned values.
        names: of the parameters, in the order of the state.
        gradient: parameters and batch to loss and gradients, searched when a parameter is not finite.
        is_finite: whether all parameters are finite.
    """

    initialize: Any
    train_step: Any
    evaluate: Any
    state: State
    batch: NamedSharding
    parameter_count: int
    names: tuple[str, ...]
    gradient: Callable[[list[Array], Batch], Any]
    is_finite: Callable[[list[Array]], Array]


def make_optimizer(config: TrainConfig, matrices: list[bool] | None = None) -> optax.GradientTransformation:
    """AdamW with gradient clipping; the learning rate rises linearly, then falls along a cosine.

    Args:
        config: its numbers.
        matrices: for each parameter whether it is a matrix, whose weights decay; None decays parameters with two or
            more dimensions, which is wrong where layers are stacked.
    """
    peak = config.learning_rate
    schedule = optax.warmup_cosine_decay_schedule(
        0.0, peak, config.warmup_steps, config.schedule_steps, peak * config.final_fraction
    )

    mask = (lambda parameters: [parameter.ndim > 1 for parameter in parameters]) if matrices is None else matrices
    adamw = optax.adamw(schedule, b2=config.beta2, weight_decay=config.weight_decay, mask=mask)
    return optax.chain(optax.clip_by_global_norm(config.clip_norm), adamw)


def make_program(config: TrainConfig, task: Task, mesh: Mesh) -> Program:
    """Combines model, optimizer and mesh.

    Raises:
        InputError: a parameter or the batch cannot be split evenly over the mesh, or the model does not support an
            axis or a setting.
    """
    check_axes(config, mesh)
    check_switches(config, mesh)
    counted = Keys(0)
    graph, abstract = nnx.split(nnx.eval_shape(lambda: task.build(counted)))
    paths, variables = zip(*nnx.to_flat_state(abstract), strict=True)
    names = tuple(".".join(map(str, path)) for path in paths)
    shardings = [
        parameter_sharding(mesh, name, variable.shape, variable.get_metadata("axes"))
        for name, variable in zip(names, variables, strict=True)
    ]
    axes = [variable.get_metadata("axes") for variable in variables]
    optimizer = make_optimizer(config, [len(over) - (LAYERS in over) > 1 for over in axes])
    scalings = [isinstance(variable, Fp8Scaling) for variable in variables]
    replicated = split(mesh)
    dtype = DTYPES[config.compute.dtype]

    def assemble(parameters: Sequence[Array]) -> nnx.Module:
        """The model with these parameters, rounded to the compute type."""
        filled = [
            v.replace(value if is_scaling else value.astype(dtype))
            for v, value, is_scaling in zip(variables, parameters, scalings, strict=True)
        ]
        return nnx.merge(graph, nnx.from_flat_state(list(zip(paths, filled, strict=True))))

    def initialize(seed: int | Array) -> State:
        _, state = nnx.split(task.build(Keys(jax.random.key(seed), counted.shapes)))
        parameters = [variable.get_value() for _, variable in nnx.to_flat_state(state)]
        return State(parameters, optimizer.init(parameters))

    def loss(parameters: list[Array], batch: Batch) -> tuple[Float[Array, ""], Float[Array, ""] | float]:
        scores = evaluate(parameters, batch)
        return scores["loss"], scores.get(WEIGHT, 1.0)

    def gradient(parameters: list[Array], batch: Batch) -> tuple[Float[Array, ""], list[Array]]:
        return accumulate_gradients(loss, parameters, batch, config.compute.accumulate)

    def train_step(state: State, batch: Batch) -> tuple[State, Float[Array, ""]]:
        value, gradients = gradient(state.parameters, batch)
        learned = [jnp.zeros_like(g) if is_scaling else g for g, is_scaling in zip(gradients, scalings, strict=True)]
        updates, memory = optimizer.update(learned, state.optimizer, state.parameters)
        following = optax.apply_updates(state.parameters, updates)
        parameters = [g if is_scaling else p for p, g, is_scaling in zip(following, gradients, scalings, strict=True)]
        return State(parameters, memory), value

    def evaluate(parameters: list[Array], batch: Batch) -> Scores:
        with use_mesh(mesh):
            return task.measure(assemble(parameters), batch)

    values = [variable.get_value() for variable in variables]  # traced above: layers by the dozen take seconds
    shapes = jax.eval_shape(lambda parameters: State(parameters, optimizer.init(parameters)), values)
    memory = optax.tree_map_params(
        optimizer, lambda _, s: s, shapes.optimizer, shardings, transform_non_params=lambda _: replicated
    )
    layout: Any = State(shardings, memory)  # type: ignore[arg-type]
    batch = batch_sharding(mesh, config.batch_size)
    return Program(
        initialize=jax.jit(initialize, out_shardings=layout, compiler_options=find_quick_options(mesh)),
        train_step=jax.jit(
            train_step, in_shardings=(layout, batch), out_shardings=(layout, replicated), donate_argnums=0
        ),
        evaluate=jax.jit(evaluate, in_shardings=(shardings, batch), out_shardings=replicated),
        state=jax.tree.map(lambda shape, sharding: shape.update(sharding=sharding), shapes, layout),
        batch=batch,
        parameter_count=sum(
            parameter.size for parameter, is_scaling in zip(shapes.parameters, scalings, strict=True) if not is_scaling
        ),
        names=names,
        gradient=gradient,
        is_finite=jax.jit(
            lambda parameters: jnp.array([jnp.isfinite(parameter).all() for parameter in parameters]).all()
        ),
    )


def find_quick_options(mesh: Mesh) -> dict[str, int]:
    """Compiler options for programs that a CPU runs once; an option in XLA_FLAGS takes precedence.

    Compiling the initialisation of seven workloads takes 2 to 40 s of CPU, and 2 to 8 s with them, for the same bits
    (`diffusion_tiny` 40 and 8, `vit_tiny` 13 and 3, `gpt_tiny` 7 and 3; jax 0.10.2).
    """
    level = "xla_backend_optimization_level"
    on_cpus = mesh.devices.flat[0].platform == "cpu"
    return {level: 1} if on_cpus and level not in os.environ.get("XLA_FLAGS", "") else {}


def accumulate_gradients(
    loss: Callable[[list[Array], Batch], tuple[Float[Array, ""], Any]],
    parameters: list[Array],
    batch: Batch,
    parts: int,
) -> tuple[Float[Array, ""], list[Array]]:
    """The loss of a batch and its gradients, computed at once or by microbatch.

    Args:
        loss: parameters and batch to the mean loss, and the weight of that mean among those of other batches.
        parameters: float32, as are the sums of their gradients.
        batch: its leading dimension is cut into `parts`.
        parts: microbatches. Each takes every `parts`-th example, so that examples stay on their device.
    """
    gradient = jax.value_and_grad(loss, has_aux=True)
    if parts == 1:
        (value, _), gradients = gradient(parameters, batch)
        return value, gradients
    pieces = jax.tree.map(lambda x: x.reshape(-1, parts, *x.shape[1:]).swapaxes(0, 1), dict(batch))

    def add(total: Any, piece: Batch) -> tuple[Any, None]:
        (value, weight), gradients = gradient(parameters, piece)

        def weigh(sum: Array, part: Array | float) -> Array:  # the mean over an empty part is NaN and has weight 0
            return sum + jnp.where(weight > 0, weight * part, 0)

        return jax.tree.map(weigh, total, (value, 1.0, gradients)), None

    zero = (jnp.zeros(()), jnp.zeros(()), [jnp.zeros_like(parameter) for parameter in parameters])
    (value, weight, gradients), _ = jax.lax.scan(add, zero, pieces)
    return value / weight, [gradient / weight for gradient in gradients]
