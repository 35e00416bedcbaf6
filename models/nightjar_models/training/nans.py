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
from jax.extend.core import JaxprEqn, Literal
from jax.sharding import PartitionSpec

# Parameter that holds the called program, by operation.
_CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
}
_PACKAGE = Path(__file__).parents[1]

Check = Callable[[JaxprEqn, Sequence[Any], str], None]  # inspects the results of one operation of a layer


class _NotFiniteError(Exception):
    """Ends the search; the message describes the operation."""


def find_first(function: Callable[..., Any], *arguments: Any) -> str | None:
    """The first operation of a function with a result that is not finite.

    >>> find_first(lambda x: jnp.log(x) + 1, jnp.zeros(3)).partition(" at ")[0]
    'log'
    """
    traced = jax.make_jaxpr(function)(*arguments)
    try:
        _run(traced, jax.tree.leaves(arguments), "", _raise_if_not_finite)
    except _NotFiniteError as error:
        return str(error)
    return None


def _raise_if_not_finite(equation: JaxprEqn, results: Sequence[Any], layer: str) -> None:
    if any(bool(flag) for flag in _flags(results)):
        raise _NotFiniteError(_describe(equation, layer))


def _flags(results: Sequence[Any]) -> list[Any]:
    """For each floating-point result, whether it is not finite."""
    return [~jnp.isfinite(result).all() for result in results if jnp.issubdtype(result.dtype, jnp.inexact)]


def _run(program: Any, arguments: Sequence[Any], layer: str, check: Check) -> list[Any]:
    """The results of a program, which may be closed or not: JAX 0.12 no longer distinguishes them."""
    constants: Sequence[Any] = getattr(program, "consts", ())
    program = getattr(program, "jaxpr", program)
    variables: dict[Any, Any] = dict(zip([*program.constvars, *program.invars], [*constants, *arguments], strict=True))

    def read(variable: Any) -> Any:
        if isinstance(variable, Literal):
            return variable.val
        return variables[variable]

    for equation in program.eqns:
        results = _step(equation, [read(variable) for variable in equation.invars], layer, check)
        variables.update(zip(equation.outvars, results, strict=True))
    return [read(variable) for variable in program.outvars]


def _step(equation: JaxprEqn, values: list[Any], layer: str, check: Check) -> Sequence[Any]:
    """The results of one operation; enters calls and scans, and branches and while loops with concrete values."""
    name, parameters = equation.primitive.name, equation.params
    layer = "/".join(part for part in (layer, str(equation.source_info.name_stack)) if part)
    concrete = not any(isinstance(value, jax.core.Tracer) for value in values)
    if name in ("jit", "pjit") and concrete:  # much faster than its operations one by one
        whole = list(equation.primitive.bind(*values, **parameters))  # type: ignore[no-untyped-call]
        if not any(bool(flag) for flag in _flags(whole)):
            return whole
    if name in _CALLS:
        return _run(parameters[_CALLS[name]], values, layer, check)
    if name == "scan":
        return _scan(parameters, values, layer, check)
    if name == "while" and concrete:
        return _while(parameters, values, layer, check)
    if name == "cond" and concrete:
        branch = parameters["branches"][min(max(int(values[0]), 0), len(parameters["branches"]) - 1)]
        return _run(branch, values[1:], layer, check)
    primitive: Any = equation.primitive
    bound = primitive.get_bind_params(parameters)
    functions, options = bound if isinstance(bound, tuple) else ((), bound)  # JAX 0.10 returns no functions

    def bind(*values: Any) -> list[Any]:
        results = primitive.bind(*functions, *values, **options)
        if primitive.multiple_results:
            return list(results)
        return [results]

    sharded = name == "shard_map" and concrete
    results = jax.jit(bind)(*values) if sharded else bind(*values)
    if sharded and any(bool(flag) for flag in _flags(results)):
        _look_inside(parameters, values, layer)
    check(equation, results, layer)
    return results


def _scan(parameters: dict[str, Any], values: list[Any], layer: str, check: Check) -> list[Any]:
    """A `jax.lax.scan`, iteration by iteration."""
    body, length = parameters["jaxpr"], parameters["length"]
    if "ft_in" in parameters:  # since JAX 0.12
        fixed, carried, _ = (len(list(group)) for group in parameters["ft_in"].unpack())
    else:
        fixed, carried = parameters["num_consts"], parameters["num_carry"]
    constants, carry, rows = values[:fixed], values[fixed : fixed + carried], values[fixed + carried :]
    turns = range(length - 1, -1, -1) if parameters["reverse"] else range(length)
    outputs: list[list[Any]] = []
    for turn in turns:
        inputs = [*constants, *carry, *(row[turn] for row in rows)]
        results = _run(body, inputs, f"{layer}.{turn}", check)
        carry = results[:carried]
        outputs.append(results[carried:])
    if parameters["reverse"]:
        outputs.reverse()
    return [*carry, *(jnp.stack(column) for column in zip(*outputs, strict=True))]


def _while(parameters: dict[str, Any], values: list[Any], layer: str, check: Check) -> list[Any]:
    """A `jax.lax.while_loop`, iteration by iteration."""
    condition, body = parameters["cond_jaxpr"], parameters["body_jaxpr"]
    first, second = parameters["cond_nconsts"], parameters["cond_nconsts"] + parameters["body_nconsts"]
    carry, turn = values[second:], 0
    while bool(_run(condition, [*values[:first], *carry], layer, check)[0]):
        carry = _run(body, [*values[first:second], *carry], f"{layer}.{turn}", check)
        turn += 1
    return carry


def _look_inside(parameters: dict[str, Any], values: list[Any], layer: str) -> None:
    """Raises for the first operation inside a `shard_map` that is not finite; the message names the device."""
    mesh = parameters["mesh"]
    manual = parameters["newly_manual_axes"] if "newly_manual_axes" in parameters else parameters["manual_axes"]
    axes = tuple(axis for axis in mesh.axis_names if axis in manual)
    operations: list[str] = []

    def watch(*values: Any) -> Any:
        not_finite: list[Any] = []

        def note(equation: JaxprEqn, results: Sequence[Any], layer: str) -> None:
            if flags := _flags(results):
                not_finite.append(jnp.stack(flags).any())
                operations.append(_describe(equation, layer))

        _run(parameters["jaxpr"], values, layer, note)
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
