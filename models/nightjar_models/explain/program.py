"""The functions that are compared: a user's function, or the loss and the gradients of a preset, with real arguments.

In: an address or a preset with settings, and a text of arguments. Out: a traced function of arrays, its leaves, and the
names of its results. Arguments that are given by shape are drawn from a fixed seed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from nightjar_models.aot.function import find_function, make_arguments
from nightjar_models.errors import InputError

BELOW = 16  # integers are drawn from 0 to 15: indices and tokens of any table
NOISE = 0.02  # the standard deviation of GPT-2's first weights


@dataclass(frozen=True, slots=True)
class Traced:
    """A traced function, the leaves of its arguments, and the names of its results."""

    jaxpr: Any
    arguments: list[Any]
    results: tuple[str, ...]


def trace(program: str, args: str | None, settings: Sequence[str]) -> Traced:
    """Traces a program; of a function that returns one number, its gradient by the first argument, too."""
    if ":" not in program:
        return trace_preset(program, settings)
    function = find_function(program)
    arguments = _draw(make_arguments(args)) if args is None or ":" not in args else find_function(args)()
    if not isinstance(arguments, tuple):
        raise InputError(f"--args {args}: expected a tuple of arguments, found {type(arguments).__name__}.")
    with contextlib.suppress(Exception):  # it returns several numbers, or has no gradient
        return trace_function(jax.value_and_grad(function), arguments)
    try:
        return trace_function(function, arguments)
    except Exception as error:
        reason = (str(error).splitlines() or [""])[0]
        hint = "the function is called with the arguments of --args"
        raise InputError(f"{program}: tracing it: {type(error).__name__}: {reason}.", hint) from error


def find_own_arguments(args: str | None, program: str, other: str) -> str | None:
    """The `--args` of the second program: of its own file, if the first program's are, since a model brings its class.

    >>> find_own_arguments("f32[8]", "old.py:loss", "new.py:loss")
    'f32[8]'
    """
    file, colon, name = (args or "").rpartition(":")
    if not colon or file != program.rpartition(":")[0]:
        return args
    own = f"{other.rpartition(':')[0]}:{name}"
    try:
        find_function(own)
    except InputError:
        return args
    return own


def trace_function(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Traced:
    """A function of any arguments as one of their arrays; variables of NNX modules that it changes are results."""
    graph, state = nnx.split(arguments)
    leaves, tree = jax.tree.flatten(state)
    arrays = [leaf for leaf in leaves if _is_array(leaf)]
    names: list[str] = []
    purify = getattr(nnx, "as_pure", lambda tree: tree)  # an older Flax has none; names differ

    def flat(*arrays: Any) -> list[Any]:
        given = iter(arrays)
        merged = nnx.merge(
            graph, jax.tree.unflatten(tree, [next(given) if _is_array(leaf) else leaf for leaf in leaves])
        )
        outcome = function(*merged)
        after = nnx.state(merged, nnx.Variable) if any(isinstance(node, nnx.Pytree) for node in arguments) else {}
        paths, _ = jax.tree_util.tree_flatten_with_path({"result": purify(outcome), "state": purify(after)})
        made = [(path, leaf) for path, leaf in paths if _is_array(leaf)]
        names[:] = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in made]
        return [leaf for _, leaf in made]

    traced = jax.make_jaxpr(flat)(*arrays)
    return Traced(traced, arrays, tuple(names))


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray | np.generic)


def _draw(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arrays of these shapes: normal floats, small integers."""
    rng = np.random.default_rng(0)

    def draw(shape: jax.ShapeDtypeStruct) -> Any:
        if jnp.issubdtype(shape.dtype, jnp.inexact):
            return jnp.asarray(rng.normal(size=shape.shape), dtype=shape.dtype)
        high = 2 if shape.dtype == bool else BELOW
        return jnp.asarray(rng.integers(0, high, shape.shape), dtype=shape.dtype)

    return tuple(jax.tree.map(draw, argument) for argument in arguments)


def trace_preset(name: str, settings: Sequence[str], mesh: str = "dp1", *, spread: bool = False) -> Traced:
    """Loss and gradients of a preset's first held-out batch at its first parameters.

    Args:
        spread: adds noise to the parameters. A head that starts at zero hides the gradients of all layers behind it.
    """
    # Another environment that compares a function of its own may lack the presets' libraries.
    from nightjar_models.data.pipeline import held_out_batches
    from nightjar_models.parallel.mesh import parse_mesh
    from nightjar_models.parallel.sharding import make_mesh, put_batch, use_mesh
    from nightjar_models.presets import find_preset
    from nightjar_models.presets.config import override
    from nightjar_models.training.idioms import make_program
    from nightjar_models.training.tasks import find_task

    config = override(find_preset(name)(), list(settings))
    task = find_task(config)
    program = make_program(config, task, make_mesh(parse_mesh(mesh)))
    batch = put_batch(held_out_batches(task.read(), config.batch_size)[0], program.batch)
    tree, rng = program.save(program.initialize(0)), np.random.default_rng(0)

    def add_noise(leaf: Any) -> Any:
        value = leaf.get_value() if isinstance(leaf, nnx.Param) else leaf
        if isinstance(value, nnx.Variable) or not jnp.issubdtype(value.dtype, jnp.floating):
            return leaf
        noisy = np.asarray(value) + NOISE * rng.normal(size=value.shape)
        placed = jax.device_put(noisy.astype(value.dtype), value.sharding)
        return leaf.replace(placed) if isinstance(leaf, nnx.Param) else placed

    if spread:
        tree = jax.tree.map(add_noise, tree, is_leaf=lambda node: isinstance(node, nnx.Variable))
    with use_mesh(program.mesh):
        return trace_function(program.gradient, (tree, batch))
