"""One program in two environments in lockstep: each operation of the second side starts from the first side's values.

In: the operations of the first side, through a pipe. Out: the first operation that differs by more than rounding
explains, else the first that differs at all. As each operation starts from equal operands, a difference is its own and
not one that grew before it. Neither side keeps more than the values in use.
"""

from __future__ import annotations

from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import JaxprEqn

from nightjar_models.errors import InputError
from nightjar_models.explain.judge import (
    MOST_NUMERICS,
    MOST_ROUNDINGS,
    TINY,
    Difference,
    find_epsilon,
    overflow_alike,
    widen,
)
from nightjar_models.explain.program import Traced
from nightjar_models.explain.record import (
    UNDEFINED,
    describe_operation,
    describe_types,
    find_line,
    is_undefined,
    list_constants,
    to_numpy,
)
from nightjar_models.program.interpreter import Interpreter, bind

# Operations that move or choose numbers and round none.
_EXACT = frozenset(
    (
        *("abs", "argmax", "argmin", "broadcast_in_dim", "clamp", "concatenate", "convert_element_type", "copy"),
        *("dynamic_slice", "dynamic_update_slice", "gather", "iota", "max", "min", "neg", "pad", "reduce_max"),
        *("reduce_min", "reshape", "rev", "select_n", "sign", "slice", "sort", "squeeze", "stop_gradient", "transpose"),
    )
)
# Sums, whose rounding grows with the terms and not with the result, which may cancel.
_SUMS = frozenset(
    (
        *("add_any", "conv_general_dilated", "cumsum", "dot_general", "psum", "reduce_sum"),
        *("reduce_window_sum", "scatter-add"),
    )
)
_ORDER = ("rounding", "numerics", UNDEFINED, "fault")


class OtherTraceError(InputError):
    """The environments trace other operations, so that they cannot go in lockstep."""


def lead(traced: Traced, pipe: Connection, names: list[str]) -> Difference | None:
    """The first side: sends the results of each operation, and gets the answer.

    Args:
        names: takes a description of each operation that was sent.
    """

    def watch(equation: JaxprEqn, values: Sequence[Any], results: Sequence[Any], layer: str) -> Sequence[Any]:
        names.append(describe_operation(interpreter.calls, results, layer))
        made = list(map(to_numpy, results))
        kind = equation.primitive.name, describe_types(made)
        pipe.send((kind, made, list_constants(equation, values), names[-1]))
        return results

    interpreter = Interpreter(watch)
    interpreter.run(traced.jaxpr, traced.arguments)
    pipe.send(None)
    answer: Difference | str | None = pipe.recv()
    if isinstance(answer, str):
        raise OtherTraceError(answer)
    return answer


def follow(traced: Traced, arguments: Sequence[Any], pipe: Connection, begun: Path) -> None:
    """The second side: compares, and sends the answer: a difference, None, or why there is none."""
    follower = Follower(pipe, begun)
    answer: Difference | str | None
    try:
        follower.interpreter.run(traced.jaxpr, arguments)
        pipe.recv()
        answer = follower.worst()
    except OtherTraceError as error:
        answer = str(error)
        while pipe.recv() is not None:
            pass
    pipe.send(answer)


class Follower:
    """The second side: compares each operation with the first side's, and goes on with its values."""

    def __init__(self, pipe: Connection, begun: Path) -> None:
        self.pipe, self.begun = pipe, begun
        self.number = 0
        self.found: dict[str, Difference] = {}
        self.interpreter = Interpreter(self.watch, self.note)

    def note(self, _equation: JaxprEqn, _values: Sequence[Any], _layer: str) -> None:
        """Writes down the operation that begins, for the case that it kills the process."""
        self.begun.write_text(str(self.number))

    def watch(self, equation: JaxprEqn, values: Sequence[Any], results: Sequence[Any], _layer: str) -> Sequence[Any]:
        """Compares the results of an operation and returns the first side's."""
        self.number += 1
        message, made = self.pipe.recv(), list(map(to_numpy, results))
        if message is None or message[0] != (equation.primitive.name, describe_types(made)):
            line = find_line(self.interpreter.calls)
            raise OtherTraceError(f"the environments trace other operations, from {line} on")
        received = []
        for own, array, sent in zip(results, made, message[1], strict=True):
            if array.tobytes() != sent.tobytes():
                kind, relative, roundings = judge_operation(equation, values, array, sent)
                if kind == "numerics" and message[2] != list_constants(equation, values):
                    kind = "fault"
                if kind:
                    difference = Difference(kind=kind, where=message[3], relative=relative, roundings=roundings)
                    self.found.setdefault(kind, difference)
            received.append(take(own, sent))
        return received

    def worst(self) -> Difference | None:
        """The first difference of the worst kind."""
        return next((self.found[kind] for kind in reversed(_ORDER) if kind in self.found), None)


def judge_operation(equation: JaxprEqn, values: Sequence[Any], own: Any, sent: Any) -> tuple[str, float, float]:
    """Kind, largest difference over the scale of the operation, and the same in units of the last place.

    The scale of a sum is its terms' absolute values. An empty kind: the difference is the sign of a zero.
    """
    second, first = widen(own), widen(sent)
    if np.array_equal(second, first, equal_nan=True):
        return "", 0.0, 0.0
    epsilon = find_epsilon(own.dtype)
    if is_undefined(equation, values):
        return UNDEFINED, np.inf, np.inf
    if not overflow_alike(second, first) or epsilon < np.finfo(np.float64).eps:
        return "fault", np.inf, np.inf
    scale = np.abs(first)
    if equation.primitive.name in _SUMS:
        scale = np.asarray(to_numpy(bind(equation, [jnp.abs(value) for value in values])[0]), dtype=np.float64)
    with np.errstate(invalid="ignore"):
        relative = float(np.nan_to_num(np.abs(second - first) / np.maximum(scale, TINY)).max())
    roundings = relative / epsilon
    if equation.primitive.name in _EXACT:
        return "fault", relative, roundings
    if roundings <= MOST_ROUNDINGS:
        return "rounding", relative, roundings
    return ("numerics" if relative <= MOST_NUMERICS else "fault"), relative, roundings


def take(own: Any, sent: Any) -> Any:
    """The first side's value in place of one's own; a random key stays, since its words alone are no key."""
    if isinstance(own, jax.Array) and jnp.issubdtype(own.dtype, jax.dtypes.prng_key):
        return own
    return jnp.asarray(sent)
