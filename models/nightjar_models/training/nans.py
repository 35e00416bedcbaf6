"""Search for the first operation that produces NaN or infinity, by running a function operation by operation.

In: a function and finite arguments. Out: the operation, its source line and its layer; None if all results are finite.
Non-finite values inside a jitted part with finite results are ignored. Slow, and meant for the one step that failed:
`nightjar-models train --debug-nans`.

The body of a `shard_map` (a pipeline, a ring) runs on all devices of a mesh axis at once and cannot run operation by
operation. It runs as a whole; if its result is not finite, it runs again with a flag for each operation inside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import JaxprEqn
from jax.sharding import PartitionSpec

from nightjar_models.program.interpreter import Interpreter, bind, is_concrete

_PACKAGE = Path(__file__).parents[1]


class _NotFiniteError(Exception):
    """Ends the search; the message describes the operation."""


def find_first(function: Callable[..., Any], *arguments: Any) -> str | None:
    """The first operation of a function with a result that is not finite.

    >>> find_first(lambda x: jnp.log(x) + 1, jnp.zeros(3)).partition(" at ")[0]
    'log'
    """
    traced = jax.make_jaxpr(function)(*arguments)
    try:
        Interpreter(_raise_if_not_finite, _run_whole).run(traced, jax.tree.leaves(arguments))
    except _NotFiniteError as error:
        return str(error)
    return None


def _raise_if_not_finite(
    equation: JaxprEqn, _values: Sequence[Any], results: Sequence[Any], layer: str
) -> Sequence[Any]:
    if any(bool(flag) for flag in _flags(results)):
        raise _NotFiniteError(_describe(equation, layer))
    return results


def _run_whole(equation: JaxprEqn, values: Sequence[Any], layer: str) -> Sequence[Any] | None:
    """The finite results of a jitted part, which is much faster than its operations one by one."""
    name = equation.primitive.name
    if name not in ("jit", "pjit", "shard_map") or not is_concrete(values):
        return None
    results = bind(equation, values)
    if not any(bool(flag) for flag in _flags(results)):
        return results
    if name == "shard_map":
        _look_inside(equation.params, values, layer)
    return None


def _flags(results: Sequence[Any]) -> list[Any]:
    """For each floating-point result, whether it is not finite."""
    return [~jnp.isfinite(result).all() for result in results if jnp.issubdtype(result.dtype, jnp.inexact)]


def _look_inside(parameters: dict[str, Any], values: Sequence[Any], layer: str) -> None:
    """Raises for the first operation inside a `shard_map` that is not finite; the message names the device."""
    mesh = parameters["mesh"]
    manual = parameters["newly_manual_axes"] if "newly_manual_axes" in parameters else parameters["manual_axes"]
    axes = tuple(axis for axis in mesh.axis_names if axis in manual)
    operations: list[str] = []

    def watch(*values: Any) -> Any:
        not_finite: list[Any] = []

        def note(equation: JaxprEqn, _values: Sequence[Any], results: Sequence[Any], layer: str) -> Sequence[Any]:
            if flags := _flags(results):
                not_finite.append(jnp.stack(flags).any())
                operations.append(_describe(equation, layer))
            return results

        Interpreter(note).run(parameters["jaxpr"], values, layer)
        return jnp.stack(not_finite)[None]

    run = jax.shard_map(
        watch,
        mesh=mesh,
        in_specs=tuple(parameters["in_specs"]),
        out_specs=PartitionSpec(axes),  # type: ignore[no-untyped-call]
        axis_names=set(axes),
        check_vma=parameters["check_vma"],
    )
    bad = np.asarray(jax.jit(run)(*values))  # by device and operation
    if bad.any():
        first = int(bad.any(axis=0).argmax())
        coordinates = np.unravel_index(int(bad[:, first].argmax()), [mesh.shape[axis] for axis in axes])
        device = [f"{axis} {index}" for axis, index in zip(axes, coordinates, strict=True) if mesh.shape[axis] > 1]
        raise _NotFiniteError(operations[first] + (f", on {' '.join(device)}" if device else ""))


def _describe(equation: JaxprEqn, layer: str) -> str:
    return f"{equation.primitive.name} at {_line(equation)}" + (f", in {layer}" if layer else "")


def _line(equation: JaxprEqn) -> str:
    """The innermost line of this package in an operation's traceback, else the innermost line of all."""
    traceback = equation.source_info.traceback
    frames: list[Any] = list(traceback.frames) if traceback is not None else []
    package = [frame for frame in frames if Path(frame.file_name).is_relative_to(_PACKAGE)]
    models = [frame for frame in package if Path(frame.file_name).parent.name == "architectures"]
    chosen = [*models, *package, *frames]
    if chosen:
        return f"{Path(chosen[0].file_name).name}:{chosen[0].line_num}"
    return "an unknown line"
