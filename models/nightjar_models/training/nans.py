"""Where does the first number arise that is not finite? Runs a function operation by operation.

In: a function and arguments that are finite. Out: the operation, its line in the source, and the layer; or None where
all results are finite. What a jitted part hides behind finite results counts for nothing. Slow, and meant for the one
step that failed: `nightjar-models train --debug-nans`.

What runs on all devices of a mesh axis at once (`shard_map`: a pipeline, a ring) cannot run operation by operation. It
runs whole, and where its result is not finite once more, with a flag for each operation inside.
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

# Where an operation that only calls another program keeps it.
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

Judge = Callable[[JaxprEqn, Sequence[Any], str], None]  # looks at the results of one operation of a layer


class _NotFiniteError(Exception):
    """Ends the search; the message is the answer."""


def find_first(function: Callable[..., Any], *arguments: Any) -> str | None:
    """The first operation of a function with a result that is not finite.

    >>> find_first(lambda x: jnp.log(x) + 1, jnp.zeros(3)).partition(" at ")[0]
    'log'
    """
    traced = jax.make_jaxpr(function)(*arguments)
    try:
        _run(traced, jax.tree.leaves(arguments), "", _refuse)
    except _NotFiniteError as found:
        return str(found)
    return None


def _refuse(equation: JaxprEqn, results: Sequence[Any], layer: str) -> None:
    if any(bool(flag) for flag in _flags(results)):
        raise _NotFiniteError(_describe(equation, layer))


def _flags(results: Sequence[Any]) -> list[Any]:
    """For each result that could be, whether it is not finite."""
    return [~jnp.isfinite(one).all() for one in results if jnp.issubdtype(one.dtype, jnp.inexact)]


def _run(program: Any, arguments: Sequence[Any], layer: str, judge: Judge) -> list[Any]:
    """The results of a program, which may be closed or not: JAX 0.12 tells the two apart no longer."""
    constants: Sequence[Any] = getattr(program, "consts", ())
    program = getattr(program, "jaxpr", program)
    known: dict[Any, Any] = dict(zip([*program.constvars, *program.invars], [*constants, *arguments], strict=True))

    def read(variable: Any) -> Any:
        return variable.val if isinstance(variable, Literal) else known[variable]

    for equation in program.eqns:
        results = _step(equation, [read(variable) for variable in equation.invars], layer, judge)
        known.update(zip(equation.outvars, results, strict=True))
    return [read(variable) for variable in program.outvars]


def _step(equation: JaxprEqn, values: list[Any], layer: str, judge: Judge) -> Sequence[Any]:
    """The results of one operation; calls and loops are entered, choices and conditions where they are known."""
    name, parameters = equation.primitive.name, equation.params
    layer = "/".join(part for part in (layer, str(equation.source_info.name_stack)) if part)
    known = not any(isinstance(value, jax.core.Tracer) for value in values)
    if name in ("jit", "pjit") and known:  # by far faster than its operations one by one
        whole = list(equation.primitive.bind(*values, **parameters))  # type: ignore[no-untyped-call]
        if not any(bool(flag) for flag in _flags(whole)):
            return whole
    if name in _CALLS:
        return _run(parameters[_CALLS[name]], values, layer, judge)
    if name == "scan":
        return _scan(parameters, values, layer, judge)
    if name == "while" and known:
        return _while(parameters, values, layer, judge)
    if name == "cond" and known:
        taken = parameters["branches"][min(max(int(values[0]), 0), len(parameters["branches"]) - 1)]
        return _run(taken, values[1:], layer, judge)
    primitive: Any = equation.primitive
    bound = primitive.get_bind_params(parameters)
    functions, options = bound if isinstance(bound, tuple) else ((), bound)  # JAX 0.10 has no functions among them

    def bind(*values: Any) -> list[Any]:
        results = primitive.bind(*functions, *values, **options)
        return list(results) if primitive.multiple_results else [results]

    sharded = name == "shard_map" and known
    results = jax.jit(bind)(*values) if sharded else bind(*values)
    if sharded and any(bool(flag) for flag in _flags(results)):
        _look_inside(parameters, values, layer)
    judge(equation, results, layer)
    return results


def _scan(parameters: dict[str, Any], values: list[Any], layer: str, judge: Judge) -> list[Any]:
    """A `jax.lax.scan`, one turn after another."""
    body, length = parameters["jaxpr"], parameters["length"]
    if "ft_in" in parameters:  # since JAX 0.12
        fixed, carried, _ = (len(list(group)) for group in parameters["ft_in"].unpack())
    else:
        fixed, carried = parameters["num_consts"], parameters["num_carry"]
    constants, carry, rows = values[:fixed], values[fixed : fixed + carried], values[fixed + carried :]
    turns = range(length - 1, -1, -1) if parameters["reverse"] else range(length)
    outputs: list[list[Any]] = []
    for turn in turns:
        given = [*constants, *carry, *(row[turn] for row in rows)]
        found = _run(body, given, f"{layer}.{turn}", judge)
        carry = found[:carried]
        outputs.append(found[carried:])
    if parameters["reverse"]:
        outputs.reverse()
    return [*carry, *(jnp.stack(column) for column in zip(*outputs, strict=True))]


def _while(parameters: dict[str, Any], values: list[Any], layer: str, judge: Judge) -> list[Any]:
    """A `jax.lax.while_loop`, one turn after another."""
    asked, body = parameters["cond_jaxpr"], parameters["body_jaxpr"]
    first, second = parameters["cond_nconsts"], parameters["cond_nconsts"] + parameters["body_nconsts"]
    carry, turn = values[second:], 0
    while bool(_run(asked, [*values[:first], *carry], layer, judge)[0]):
        carry = _run(body, [*values[first:second], *carry], f"{layer}.{turn}", judge)
        turn += 1
    return carry


def _look_inside(parameters: dict[str, Any], values: list[Any], layer: str) -> None:
    """Raises for the first operation of a `shard_map`'s program that is not finite, and says on which device."""
    mesh = parameters["mesh"]
    manual = parameters["newly_manual_axes"] if "newly_manual_axes" in parameters else parameters["manual_axes"]
    axes = tuple(axis for axis in mesh.axis_names if axis in manual)
    places: list[str] = []

    def watch(*values: Any) -> Any:
        found: list[Any] = []

        def note(equation: JaxprEqn, results: Sequence[Any], layer: str) -> None:
            if flags := _flags(results):
                found.append(jnp.stack(flags).any())
                places.append(_describe(equation, layer))

        _run(parameters["jaxpr"], values, layer, note)
        return jnp.stack(found)[None]

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
        where = np.unravel_index(int(bad[:, first].argmax()), [mesh.shape[axis] for axis in axes])
        named = [f"{axis} {place}" for axis, place in zip(axes, where, strict=True) if mesh.shape[axis] > 1]
        raise _NotFiniteError(", on ".join([places[first], " ".join(named)] if named else [places[first]]))


def _describe(equation: JaxprEqn, layer: str) -> str:
    return f"{equation.primitive.name} at {_line(equation)}" + (f", in {layer}" if layer else "")


def _line(equation: JaxprEqn) -> str:
    """The innermost line of this package in an operation's traceback, else the innermost line at all."""
    traceback = equation.source_info.traceback
    frames: list[Any] = list(traceback.frames) if traceback is not None else []
    own = [frame for frame in frames if Path(frame.file_name).is_relative_to(_PACKAGE)]
    models = [frame for frame in own if Path(frame.file_name).parent.name == "architectures"]
    chosen = [*models, *own, *frames]
    return f"{Path(chosen[0].file_name).name}:{chosen[0].line_num}" if chosen else "an unknown line"
