"""The same model and optimizer in the loops that Flax's documentation shows.

`nnx`: `nnx.jit` over the module and an `nnx.Optimizer`, as in Flax's tutorials. `state`: `jax.jit` over a split state
in a `flax.struct` dataclass, as in Flax's language-model example.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import optax
from flax import nnx, struct

from nightjar_models.presets import find_preset
from nightjar_models.sharding import Keys
from nightjar_models.step import make_optimizer
from nightjar_models.tasks import find_task


def make(preset: str, style: str) -> Callable[[Any], float]:
    """The step of a preset in one of the two styles."""
    config = find_preset(preset)()
    task = find_task(config)
    model = jax.jit(lambda: nnx.split(task.build(Keys(jax.random.key(0)))))
    _, values = model()
    graph, _ = nnx.split(nnx.eval_shape(lambda: task.build(Keys(0))))
    module = nnx.merge(graph, values)
    return make_nnx(config, task, module) if style == "nnx" else make_state(config, task, module)


def make_optax(config: Any) -> Any:
    """Our optimizer over a tree of arrays: decay for matrices alone, then everything else as ours."""
    listed = make_optimizer(config)

    def init(parameters: Any) -> Any:
        return listed.init(jax.tree.leaves(parameters))

    def update(gradients: Any, memory: Any, parameters: Any) -> Any:
        leaves, tree = jax.tree.flatten(gradients)
        found, memory = listed.update(leaves, memory, jax.tree.leaves(parameters))
        return jax.tree.unflatten(tree, found), memory

    return optax.GradientTransformation(init, update)


def make_nnx(config: Any, task: Any, module: nnx.Module) -> Callable[[Any], float]:
    """The tutorial's loop."""
    optimizer = nnx.Optimizer(module, make_optax(config), wrt=nnx.Param)

    @nnx.jit
    def train_step(module: Any, optimizer: Any, batch: Any) -> Any:
        loss, gradients = nnx.value_and_grad(lambda one: task.measure(one, batch)["loss"])(module)
        optimizer.update(module, gradients)
        return loss

    return lambda batch: float(train_step(module, optimizer, batch))


def make_state(config: Any, task: Any, module: nnx.Module) -> Callable[[Any], float]:
    """The example's loop."""
    graph, parameters = nnx.split(module)
    transform = make_optax(config)

    @struct.dataclass
    class TrainState:
        params: Any
        opt_state: Any

    @partial(jax.jit, donate_argnums=0)
    def train_step(state: Any, batch: Any) -> Any:
        def loss(parameters: Any) -> Any:
            return task.measure(nnx.merge(graph, parameters), batch)["loss"]

        value, gradients = jax.value_and_grad(loss)(state.params)
        updates, memory = transform.update(gradients, state.opt_state, state.params)
        return state.replace(params=optax.apply_updates(state.params, updates), opt_state=memory), value

    state = TrainState(params=parameters, opt_state=transform.init(parameters))

    def step(batch: Any) -> float:
        nonlocal state
        state, loss = train_step(state, batch)
        return float(loss)

    return step
