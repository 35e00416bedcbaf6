"""The programs of a run: the first state, the train step and the evaluation, with Flax NNX.

In: a config, its task and a mesh. Out: a `Program`. The idiom of `config.idiom` decides its state: for `nnx` the model
and the optimizer themselves, which a step changes in place. A checkpoint always holds a tree of arrays.
"""

from __future__ import annotations

import abc
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, Float

from nightjar_models.architectures.precision import Fp8Scaling
from nightjar_models.parallel.sharding import batch_sharding, lay_out, put_batch, split, use_mesh
from nightjar_models.presets.config import TrainConfig
from nightjar_models.training.optimizer import make_optimizer
from nightjar_models.training.start import nudge, start_at
from nightjar_models.training.switches import check_switches
from nightjar_models.training.tasks import MASK, Scores, Task, check_axes

Batch = Mapping[str, Array]
LEARNED = nnx.DiffState(0, (nnx.Param, Fp8Scaling))  # variables that a loss is differentiated by


class Program(abc.ABC):
    """The functions of a run, not yet compiled.

    Args:
        config: of the run.
        task: its model and scores.
        mesh: over which it is laid out.

    Attributes:
        abstract: shapes, types and shardings of the state as a tree of arrays, model before optimizer.
        batch: sharding of a batch.
        names: of the variables of `model` and `optimizer`, in their order.
        parameter_count: number of learned values.

    Raises:
        InputError: a parameter or the batch cannot be split evenly over the mesh, or the model does not support an
            axis or a setting.
    """

    def __init__(self, config: TrainConfig, task: Task, mesh: Mesh) -> None:
        check_axes(config, mesh)
        check_switches(config, mesh)
        self.config, self.task, self.mesh = config, task, mesh
        self.batch = batch_sharding(mesh, config.batch_size, config.compute.accumulate)
        # Outside of the mesh: within it, Flax 0.12.8 gives Adafactor's and Muon's variables the parameter's sharding
        # and fails, since their ranks differ.
        nodes = nnx.eval_shape(lambda: self._build(0))
        self.graph: Any
        self.graph, state = nnx.split(nodes)
        self.layout = lay_out(state, mesh)
        self.abstract = jax.tree.map(lambda shape, sharding: shape.update(sharding=sharding), state, self.layout)
        variables = nnx.to_flat_state(nnx.state(nodes[0]))
        self.names = {
            name: tuple(".".join(map(str, path)) for path, _ in nnx.to_flat_state(nnx.state(node)))
            for name, node in zip(("model", "optimizer"), nodes, strict=True)
        }
        self.parameter_count = sum(
            math.prod(variable.shape) for _, variable in variables if isinstance(variable, nnx.Param)
        )

    @property
    def initializer(self) -> Any:
        """A seed to the first tree of arrays, laid out over the mesh."""
        return jax.jit(self._start, out_shardings=self.layout, compiler_options=find_quick_options(self.mesh))

    def initialize(self, seed: int, nudged: bool = False) -> Any:
        """The first state; if `nudged`, each of its floats is one unit in the last place higher or lower."""
        with use_mesh(self.mesh):
            tree = self.initializer(seed)
            if nudged:
                tree = jax.jit(nudge, out_shardings=self.layout)(tree, seed)
            if self.config.first_step:
                tree = start_at(tree, self.config.first_step // self.config.accumulate_steps)
            return self.load(tree)

    @abc.abstractmethod
    def load(self, tree: Any) -> Any:
        """The state of a tree of arrays."""

    @abc.abstractmethod
    def save(self, state: Any) -> Any:
        """The tree of arrays of a state."""

    @abc.abstractmethod
    def lower(self, batch: Mapping[str, Any]) -> Any:
        """The train step for batches of these shapes."""

    @abc.abstractmethod
    def bind(self, compiled: Any) -> Callable[[Any, Batch], tuple[Any, Float[Array, ""]]]:
        """A compiled step as a function of state and batch; the old state is consumed."""

    @abc.abstractmethod
    def model(self, state: Any) -> nnx.Module:
        """The model of a state."""

    def evaluate(self, state: Any, batches: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """The mean scores on batches, without dropout.

        It waits for each batch: several programs with collectives in flight can block each other on XLA:CPU, whose
        devices share one pool of threads.
        """
        measure = self.task.measure

        @nnx.jit
        def eval_step(model: nnx.Module, metrics: nnx.MultiMetric, batch: Batch) -> None:
            metrics.update(**measure(model, batch))

        averages = {name: nnx.metrics.Average(name) for name in self.task.units}
        metrics: Any = nnx.MultiMetric(**averages)  # type: ignore[no-untyped-call]
        # Laid out as the first batch leaves them: the second one is spared a compilation of its own.
        nnx.update(metrics, jax.device_put(nnx.state(metrics), split(self.mesh)))
        with use_mesh(self.mesh):
            model = nnx.view(self.model(state), raise_if_not_found=False, deterministic=True, use_running_average=True)
            for batch in batches:
                eval_step(model, metrics, put_batch(batch, self.batch))
                jax.block_until_ready(nnx.state(metrics))  # type: ignore[no-untyped-call]
            return {name: float(value) for name, value in metrics.compute().items()}

    def gradient(self, tree: Any, batch: Batch) -> Any:
        """Loss and gradients of a tree of arrays."""
        model, _ = nnx.merge(self.graph, tree)
        value, gradients = differentiate(model, batch, self.task, self.config.compute.accumulate)
        return value, nnx.as_pure(gradients)

    def is_finite(self, state: Any) -> bool:
        """Whether all parameters are finite; on CPUs only, as NumPy reads them in place without compiling a program."""
        parameters = nnx.state(self.model(state), nnx.Param)
        if _is_on_cpus(self.mesh) and not self.mesh.is_multi_process:
            return all(bool(np.isfinite(leaf).all()) for leaf in jax.tree.leaves(parameters))
        with use_mesh(self.mesh):
            return bool(_is_finite(parameters))

    def _start(self, seed: int | Array) -> Any:
        return nnx.state(self._build(seed))

    def _build(self, seed: int | Array) -> tuple[nnx.Module, nnx.Optimizer[Any]]:
        model = self.task.build(nnx.Rngs(jax.random.key(seed)))
        return model, nnx.Optimizer(model, make_optimizer(self.config), wrt=nnx.Param)

    def _update(self, model: nnx.Module, optimizer: nnx.Optimizer[Any], batch: Batch) -> Float[Array, ""]:
        """One step of a model and its optimizer, in place; the loss before it."""
        value, gradients = differentiate(model, batch, self.task, self.config.compute.accumulate)
        optimizer.update(model, gradients)
        nnx.update(model, nnx.filter_state(gradients, Fp8Scaling))
        return value


class NNXProgram(Program):
    """The loop of Flax's own documentation: `nnx.jit` over a model and an `nnx.Optimizer`, changed in place."""

    def load(self, tree: Any) -> Any:
        return nnx.merge(self.graph, tree)

    def save(self, state: Any) -> Any:
        return nnx.state(state)

    def model(self, state: Any) -> nnx.Module:
        model: nnx.Module = state[0]
        return model

    def lower(self, batch: Mapping[str, Any]) -> Any:
        """The step of abstract model and optimizer."""

        @nnx.jit(donate_argnames=("model", "optimizer"))
        def train_step(model: nnx.Module, optimizer: nnx.Optimizer[Any], batch: Batch) -> Float[Array, ""]:
            loss = self._update(model, optimizer, batch)
            for node, layout in zip((model, optimizer), nnx.merge(self.graph, self.layout), strict=True):
                kept = jax.lax.with_sharding_constraint(nnx.state(node), nnx.state(layout))  # type: ignore[no-untyped-call]
                nnx.update(node, kept)
            return loss

        with use_mesh(self.mesh):
            return train_step.lower(*nnx.merge(self.graph, self.abstract), batch)

    def bind(self, compiled: Any) -> Callable[[Any, Batch], tuple[Any, Float[Array, ""]]]:
        """Calls the step with model and optimizer, which it changes."""

        def step(state: Any, batch: Batch) -> tuple[Any, Float[Array, ""]]:
            return state, compiled(*state, batch)

        return step


class FunctionalProgram(Program):
    """A loop by `jax.jit` over the tree of arrays."""

    @abc.abstractmethod
    def step(self, state: Any, batch: Batch) -> tuple[Any, Float[Array, ""]]:
        """One step, to be compiled."""

    def load(self, tree: Any) -> Any:
        return tree

    def save(self, state: Any) -> Any:
        return state

    def lower(self, batch: Mapping[str, Any]) -> Any:
        """The step of the abstract state."""

        def train_step(state: Any, batch: Batch) -> tuple[Any, Float[Array, ""]]:
            return self.step(state, batch)

        jitted = jax.jit(train_step, donate_argnums=0, out_shardings=(self.layout, None))
        with use_mesh(self.mesh):
            return jitted.lower(self.abstract, batch)

    def bind(self, compiled: Any) -> Callable[[Any, Batch], tuple[Any, Float[Array, ""]]]:
        step: Callable[[Any, Batch], tuple[Any, Float[Array, ""]]] = compiled
        return step


class SplitProgram(FunctionalProgram):
    """Flax's functional loop: over the arrays of model and optimizer, put together while tracing."""

    def model(self, state: Any) -> nnx.Module:
        model: nnx.Module = nnx.merge(self.graph, state)[0]
        return model

    def step(self, state: Any, batch: Batch) -> tuple[Any, Float[Array, ""]]:
        model, optimizer = nnx.merge(self.graph, state)
        loss = self._update(model, optimizer, batch)
        return nnx.state((model, optimizer)), loss


def find_quick_options(mesh: Mesh) -> dict[str, int]:
    """Compiler options for programs that a CPU runs once; an option in XLA_FLAGS takes precedence.

    Compiling the initialisation of seven workloads takes 2 to 40 s of CPU, and 2 to 8 s with them, for the same bits
    (`diffusion_tiny` 40 and 8, `vit_tiny` 13 and 3, `gpt_tiny` 7 and 3; jax 0.10.2).
    """
    level = "xla_backend_optimization_level"
    if _is_on_cpus(mesh) and level not in os.environ.get("XLA_FLAGS", ""):
        return {level: 1}
    return {}


def _is_on_cpus(mesh: Mesh) -> bool:
    return bool(mesh.devices.flat[0].platform == "cpu")


@jax.jit
def _is_finite(parameters: Any) -> Array:
    return jnp.array([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(parameters)]).all()


def weigh(scores: Scores) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """The mean loss, and its number of values (by the mask); zero if there are none."""
    loss = scores["loss"]
    counted = jnp.broadcast_to(scores.get(MASK, jnp.ones(())), loss.shape).astype(loss.dtype)
    weight = counted.sum()
    return (loss * counted).sum() / jnp.maximum(weight, 1), weight


def differentiate(model: nnx.Module, batch: Batch, task: Task, parts: int) -> tuple[Float[Array, ""], Any]:
    """The loss of a batch and its gradients, computed at once or by microbatch.

    Args:
        model: its random state moves on.
        batch: its leading dimension is cut into `parts`.
        task: measures the loss.
        parts: microbatches. Each takes every `parts`-th example, so that examples stay on their device.
    """

    @nnx.value_and_grad(argnums=LEARNED, has_aux=True)
    def gradient(model: nnx.Module, batch: Batch) -> tuple[Float[Array, ""], Float[Array, ""]]:
        return weigh(task.measure(model, batch))

    if parts == 1:
        (value, _), gradients = gradient(model, batch)
        return value, gradients
    pieces = jax.tree.map(lambda x: x.reshape(-1, parts, *x.shape[1:]).swapaxes(0, 1), dict(batch))
    divided: Any = nnx.split(model, nnx.Param, Fp8Scaling, ...)
    graph, learned, scaling, others = divided
    leaves, tree = jax.tree.flatten(learned)  # arrays: variables of an outer trace cannot enter a module

    def add(carry: Any, piece: Batch) -> tuple[Any, None]:
        total, scaling, others = carry
        model = nnx.merge(graph, jax.tree.unflatten(tree, leaves), scaling, others)
        (value, weight), gradients = gradient(model, piece)
        scaling = nnx.filter_state(gradients, Fp8Scaling)  # of the next microbatch
        parts = value, jnp.ones(()), nnx.filter_state(gradients, nnx.Param)
        total = jax.tree.map(lambda sum, part: sum + weight * part, total, parts)
        return (total, scaling, nnx.state(model, nnx.Not((nnx.Param, Fp8Scaling)))), None

    zero = (jnp.zeros(()), jnp.zeros(()), jax.tree.map(jnp.zeros_like, learned))
    ((value, weight, total), scaling, others), _ = jax.lax.scan(add, (zero, scaling, others), pieces)
    nnx.update(model, others)
    return value / weight, nnx.merge_state(jax.tree.map(lambda sum: sum / weight, total), scaling)
