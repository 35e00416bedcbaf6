"""Records of a run: each operation with its line, its layer, and digests of the values that it takes and makes.

In: a traced function and its arguments. Out: a `Record`, small next to the values, which are not kept. A second run of
the same program keeps the values of chosen operations.
"""

from __future__ import annotations

import hashlib
import re
import weakref
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import JaxprEqn, Literal

from nightjar_models.program.interpreter import Interpreter

_PACKAGE = Path(__file__).parents[1]
_INSTALLED = ("site-packages", "dist-packages", "lib/python3")
UNDEFINED = "undefined"
_SHOWN = ("precision", "preferred_element_type", "new_dtype", "algorithm")  # parameters that decide the numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One operation of a run.

    Attributes:
        place: its number in the run.
        text: its line, name, type and layer.
        types: of the results, such as `float32[8,16]`.
        detail: parameters that decide the numbers, and constants among the operands.
        operands, results: digests; constants are not among the operands.
    """

    place: int
    name: str
    text: str
    types: tuple[str, ...]
    detail: tuple[str, ...]
    operands: tuple[str, ...]
    results: tuple[str, ...]

    def __str__(self) -> str:
        return self.text


def describe_layer(layer: str) -> str:
    """A layer in words.

    >>> describe_layer("transpose(jvp(layers.3))/norm"), describe_layer("vmap(jvp())")
    (', in the backward pass of layers.3/norm', '')
    """
    name = "/".join(part for part in re.sub(r"transpose\(|jvp\(|vmap\(|\)", "", layer).split("/") if part)
    if "transpose(" in layer:
        return ", in the backward pass" + (f" of {name}" if name else "")
    return f", in {name}" if name else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The operations of a run in their order, and the digests of its arguments and results.

    Attributes:
        kept: the first results of operations, by their place.
        values: the results of the run, if operations are kept.
    """

    operations: tuple[Operation, ...]
    arguments: tuple[str, ...]
    results: tuple[str, ...]
    kept: Mapping[int, Any] = field(default_factory=dict)
    values: tuple[Any, ...] = ()

    def known(self) -> frozenset[str]:
        return frozenset((*self.arguments, *(digest for operation in self.operations for digest in operation.results)))


class _Digests:
    """Digests of values, each computed once while the value lives."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Any], str]] = {}

    def find(self, value: Any) -> str:
        entry = self._known.get(id(value))
        if entry is not None and entry[0]() is value:
            return entry[1]
        digest = digest_value(value)
        if isinstance(value, jax.Array):
            self._known[id(value)] = (weakref.ref(value), digest)
        return digest


def to_numpy(value: Any) -> np.ndarray[Any, Any]:
    """The numbers of a value; of a random key its words."""
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    return np.asarray(value)


def digest_value(value: Any) -> str:
    """The same for two values if they have one type and shape and are equal bit for bit."""
    array = to_numpy(value)
    about = f"{array.dtype}{array.shape}".encode()
    return hashlib.blake2b(about + np.ascontiguousarray(array).tobytes(), digest_size=12).hexdigest()


def record(traced: Any, arguments: Sequence[Any], keep: Collection[int] = ()) -> Record:
    """Runs a traced function operation by operation.

    Args:
        keep: the places of operations whose first results are kept.
    """
    digests, operations, kept = _Digests(), list[Operation](), dict[int, Any]()

    def add(name: str, detail: tuple[str, ...], operands: Sequence[Any], results: Sequence[Any], layer: str) -> None:
        number = len(operations)
        if number in keep:
            kept[number] = to_numpy(results[0])
        made = Operation(
            place=number,
            name=name,
            text=describe_operation(interpreter.calls, results, layer),
            types=describe_types(results),
            detail=detail,
            operands=tuple(map(digests.find, operands)),
            results=tuple(map(digests.find, results)),
        )
        operations.append(made)

    def watch(equation: JaxprEqn, values: Sequence[Any], results: Sequence[Any], layer: str) -> Sequence[Any]:
        pairs = zip(equation.invars, values, strict=True)
        operands = [value for variable, value in pairs if not isinstance(variable, Literal)]
        parameters = [f"{name}={equation.params[name]}" for name in _SHOWN if equation.params.get(name) is not None]
        detail = (*parameters, *list_constants(equation, values))
        if is_undefined(equation, values):
            detail = (*detail, UNDEFINED)
        add(equation.primitive.name, detail, operands, results, layer)
        return results

    def link(values: Sequence[Any], results: Sequence[Any], layer: str) -> None:
        add("scan", (), values, results, layer)

    interpreter = Interpreter(watch, link=link)
    outputs = interpreter.run(traced, arguments)
    return Record(
        operations=tuple(operations),
        arguments=tuple(digests.find(value) for value in arguments),
        results=tuple(digests.find(value) for value in outputs),
        kept=kept,
        values=tuple(map(to_numpy, outputs)) if keep else (),
    )


def list_constants(equation: JaxprEqn, values: Sequence[Any]) -> list[str]:
    """The numbers among the operands that stand in the program."""
    pairs = zip(equation.invars, values, strict=True)
    numbers = (complex(value) for name, value in pairs if isinstance(name, Literal) and np.size(value) == 1)
    return [f"{number:.9g}".removesuffix("+0j") for number in numbers]


def is_undefined(equation: JaxprEqn, values: Sequence[Any]) -> bool:
    """Whether its result is undefined: from memory without values, or at an index that was promised not to be."""
    name, parameters = equation.primitive.name, equation.params
    if name == "empty" or parameters.get("mode") is not jax.lax.GatherScatterMode.PROMISE_IN_BOUNDS:
        return bool(name == "empty")
    numbers = parameters["dimension_numbers"]
    axes = numbers.start_index_map if name == "gather" else numbers.scatter_dims_to_operand_dims
    indices, sizes = to_numpy(values[1]), np.array(np.shape(values[0]))[list(axes)]
    return bool(((indices < 0) | (indices >= sizes)).any())


def describe_types(values: Sequence[Any]) -> tuple[str, ...]:
    """Such as `float32[8, 16]`."""
    return tuple(f"{value.dtype}{list(np.shape(value))}" for value in values) or ("nothing",)


def describe_operation(calls: Sequence[JaxprEqn], results: Sequence[Any], layer: str) -> str:
    """The last of these operations: its line, name, type and layer."""
    kind = describe_types(results)[0].partition("[")[0]
    return f"{find_line(calls)}, {calls[-1].primitive.name} in {kind}{describe_layer(layer)}"


def find_line(calls: Sequence[JaxprEqn]) -> str:
    """The innermost line of the user's code, or of a preset's layers, around the last of these operations."""
    frames = [frame for call in reversed(calls) for frame in _list_frames(call)]
    own = [frame for frame in frames if Path(frame.file_name).is_relative_to(_PACKAGE)]
    layers = [frame for frame in own if Path(frame.file_name).parent.name == "architectures"]
    user = [frame for frame in frames if frame not in own and not any(part in frame.file_name for part in _INSTALLED)]
    for frame in (*layers, *user, *own, *frames):
        return f"{Path(frame.file_name).name}:{frame.line_num}"
    return "an unknown line"


def _list_frames(equation: JaxprEqn) -> list[Any]:
    """The traceback of an operation, innermost first."""
    traceback = equation.source_info.traceback
    return [] if traceback is None else list(traceback.frames)
