"""The idioms of a training loop, and a GPT's idioms without an NNX model: Linen, pure JAX and `shard_map`.

In: a config, its task and a mesh. Out: `make_program` makes its `Program`. Those here start from the parameters of
`gpt.py`, so that their losses equal the idiom `nnx`'s, up to the order of sums.

| idiom | loop | model |
|---|---|---|
| `linen` | `jax.jit` over a `TrainState` | `gpt_linen.py` |
| `pure` | `jax.jit` over dictionaries and an Optax state | `gpt_pure.py` |
| `shard_map` | the same, each device for its examples, with the gradient of their mean loss | `gpt_pure.py` |
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from flax.training.train_state import TrainState
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Int

from nightjar_models.architectures import gpt_linen, gpt_pure
from nightjar_models.architectures.layers import cross_entropy
from nightjar_models.parallel.sharding import BATCH, split
from nightjar_models.presets.config import TrainConfig
from nightjar_models.training.optimizer import make_optimizer
from nightjar_models.training.step import Batch, FunctionalProgram, NNXProgram, Program, SplitProgram
from nightjar_models.training.tasks import Task

Loss = Float[Array, ""]


class GPTProgram(FunctionalProgram):
    """A loop that no NNX module is part of; every device holds the whole state."""

    def __init__(self, config: TrainConfig, task: Task, mesh: Mesh) -> None:
        super().__init__(config, task, mesh)
        self.optimizer = make_optimizer(config)
        everywhere = split(mesh)
        shapes = jax.eval_shape(self._start, 0)
        self.layout = jax.tree.map(lambda shape: everywhere, shapes)
        self.abstract = jax.tree.map(lambda shape: shape.update(sharding=everywhere), shapes)

    def _start(self, seed: int | Array) -> Any:
        model = self.task.build(nnx.Rngs(jax.random.key(seed)))
        return self.begin(nnx.to_pure_dict(nnx.state(model, nnx.Param)))

    @abc.abstractmethod
    def begin(self, parameters: Any) -> Any:
        """The state of these parameters."""

    @abc.abstractmethod
    def list_parameters(self, state: Any) -> Any:
        """The parameters of a state, under the names of `gpt.py`."""

    @abc.abstractmethod
    def gradient(self, tree: Any, batch: Batch) -> Any:
        """Loss and gradients."""

    def model(self, state: Any) -> nnx.Module:
        """The NNX model with these parameters."""
        model = self.task.build(nnx.Rngs(0))
        nnx.update(model, self.list_parameters(state))
        return model


class LinenProgram(GPTProgram):
    """A Linen model and a `TrainState`."""

    @functools.cached_property
    def apply(self) -> Any:
        """The same function each time: a train state compares it."""
        return gpt_linen.GPT(self.config.model).apply  # type: ignore[arg-type]

    def begin(self, parameters: Any) -> Any:
        return TrainState.create(apply_fn=self.apply, params=gpt_linen.rename(parameters), tx=self.optimizer)  # type: ignore[no-untyped-call]

    def list_parameters(self, state: Any) -> Any:
        return gpt_linen.name_back(state.params)

    def gradient(self, tree: Any, batch: Batch) -> Any:

        def loss(parameters: Any) -> Loss:
            return next_byte_loss(lambda tokens: tree.apply_fn({"params": parameters}, tokens), batch["tokens"])

        return jax.value_and_grad(loss)(tree.params)

    def step(self, state: Any, batch: Batch) -> tuple[Any, Loss]:
        value, gradients = self.gradient(state, batch)
        return state.apply_gradients(grads=gradients), value


class PureProgram(GPTProgram):
    """Dictionaries of arrays and an Optax state."""

    def begin(self, parameters: Any) -> Any:
        return {"parameters": parameters, "memory": self.optimizer.init(parameters)}

    def list_parameters(self, state: Any) -> Any:
        return state["parameters"]

    def loss(self, parameters: Any, batch: Batch) -> Loss:
        return next_byte_loss(lambda tokens: gpt_pure.apply(parameters, tokens), batch["tokens"])

    def gradient(self, tree: Any, batch: Batch) -> Any:
        return jax.value_and_grad(self.loss)(tree["parameters"], batch)

    def step(self, state: Any, batch: Batch) -> tuple[Any, Loss]:
        value, gradients = self.gradient(state, batch)
        updates, memory = self.optimizer.update(gradients, state["memory"], state["parameters"])
        return {"parameters": optax.apply_updates(state["parameters"], updates), "memory": memory}, value


class ShardMapProgram(PureProgram):
    """The pure loop, in which each device computes the gradients of its examples."""

    def loss(self, parameters: Any, batch: Batch) -> Loss:
        """The mean over the examples of all devices."""
        mean: Loss = jax.lax.pmean(super().loss(parameters, batch), BATCH)  # type: ignore[no-untyped-call]
        return mean

    def gradient(self, tree: Any, batch: Batch) -> Any:
        """Of the mean loss, within a `shard_map`."""
        everywhere, by_example = PartitionSpec(), PartitionSpec(BATCH)  # type: ignore[no-untyped-call]
        run = jax.shard_map(
            jax.value_and_grad(self.loss),
            mesh=self.mesh,
            in_specs=(everywhere, by_example),
            out_specs=(everywhere, everywhere),
            axis_names=set(BATCH),
        )
        return run(tree["parameters"], dict(batch))


def next_byte_loss(apply: Callable[[Array], Array], tokens: Int[Array, "B T+1"]) -> Loss:
    """The mean negative log likelihood of each next byte, in nats."""
    return jnp.mean(cross_entropy(apply(tokens[:, :-1]), tokens[:, 1:]))


PROGRAMS: dict[str, type[Program]] = {
    "nnx": NNXProgram,
    "split": SplitProgram,
    "linen": LinenProgram,
    "pure": PureProgram,
    "shard_map": ShardMapProgram,
}


def make_program(config: TrainConfig, task: Task, mesh: Mesh) -> Program:
    """The program of a config, in its idiom.

    Raises:
        InputError: a parameter or the batch cannot be split evenly over the mesh, or the model does not support an
            axis, a setting or the idiom.
    """
    return PROGRAMS[config.idiom](config, task, mesh)
