"""Where does the first number arise that is not finite? Runs a function operation by operation.

In: a function and arguments that are finite. Out: the operation, its line in the source, and the layer; or None where
all results are finite. Slow, and meant for the one step that failed: `nightjar-models train --debug-nans`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Jaxpr, JaxprEqn, Literal

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
_PACKAGE = Path(__file__).parent


class _NotFiniteError(Exception):
    """Ends the search; the message is the answer."""


def find_first(function: Callable[..., Any], *arguments: Any) -> str | None:
    """The first operation of a function with a result that is not finite.

    >>> find_first(lambda x: jnp.log(x) + 1, jnp.zeros(3)).partition(" at ")[0]
    'log'
    """
    traced = jax.make_jaxpr(function)(*arguments)
    try:
        _run(traced.jaxpr, traced.consts, jax.tree.leaves(arguments), "")
    except _NotFiniteError as found:
        return str(found)
    return None


def _run(program: Jaxpr, constants: Sequence[Any], arguments: Sequence[Any], layer: str) -> list[Any]:
    """The program's results."""
    known: dict[Any, Any] = dict(zip([*program.constvars, *program.invars], [*constants, *arguments], strict=True))

    def read(variable: Any) -> Any:
        return variable.val if isinstance(variable, Literal) else known[variable]

    for equation in program.eqns:
        results = _step(equation, [read(variable) for variable in equation.invars], layer)
        known.update(zip(equation.outvars, results, strict=True))
    return [read(variable) for variable in program.outvars]


def _step(equation: JaxprEqn, values: list[Any], layer: str) -> Sequence[Any]:
    """The results of one operation; calls and loops over layers are entered."""
    name, parameters = equation.primitive.name, equation.params
    layer = "/".join(part for part in (layer, str(equation.source_info.name_stack)) if part)
    if name in _CALLS:
        inner = parameters[_CALLS[name]]
        closed = isinstance(inner, Jaxpr)
        return _run(inner if closed else inner.jaxpr, () if closed else inner.consts, values, layer)
    if name == "scan":
        return _scan(parameters, values, layer)
    primitive: Any = equation.primitive
    bound = primitive.get_bind_params(parameters)
    functions, options = bound if isinstance(bound, tuple) else ((), bound)  # JAX 0.10 has no functions among them
    results = primitive.bind(*functions, *values, **options)
    results = results if primitive.multiple_results else [results]
    for result in results:
        if jnp.issubdtype(result.dtype, jnp.inexact) and not bool(jnp.isfinite(result).all()):
            raise _NotFiniteError(f"{name} at {_line(equation)}" + (f", in {layer}" if layer else ""))
    return list(results)


def _scan(parameters: dict[str, Any], values: list[Any], layer: str) -> list[Any]:
    """A `jax.lax.scan`, one turn after another."""
    body, length = parameters["jaxpr"], parameters["length"]
    fixed, carried = parameters["num_consts"], parameters["num_carry"]
    constants, carry, rows = values[:fixed], values[fixed : fixed + carried], values[fixed + carried :]
    turns = range(length - 1, -1, -1) if parameters["reverse"] else range(length)
    outputs: list[list[Any]] = []
    for turn in turns:
        found = _run(body.jaxpr, body.consts, [*constants, *carry, *(row[turn] for row in rows)], f"{layer}.{turn}")
        carry = found[:carried]
        outputs.append(found[carried:])
    if parameters["reverse"]:
        outputs.reverse()
    return [*carry, *(jnp.stack(column) for column in zip(*outputs, strict=True))]


def _line(equation: JaxprEqn) -> str:
    """The innermost line of this package in an operation's traceback, else the innermost line at all."""
    traceback = equation.source_info.traceback
    frames: list[Any] = list(traceback.frames) if traceback is not None else []
    own = [frame for frame in frames if Path(frame.file_name).is_relative_to(_PACKAGE)]
    models = [frame for frame in own if Path(frame.file_name).parent.name == "models"]
    chosen = [*models, *own, *frames]
    return f"{Path(chosen[0].file_name).name}:{chosen[0].line_num}" if chosen else "an unknown line"
