"""Operations of a run as Python code that needs JAX alone.

In: steps, each an operation with its values. Out: lines of code. A step is a call of `jax.lax` if a function there
takes the operation's parameters under their names, and else the operation itself is bound.
"""

from __future__ import annotations

import enum
import inspect
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import JaxprEqn
from jax.sharding import NamedSharding

from nightjar_models.explain.record import digest_value, to_numpy

FEW = 8  # numbers that are always written out
MOST_NUMBERS = 400  # of a file of thirty lines
WIDTH = 118
_NAMES = {"add_any": "add", "and": "bitwise_and", "not": "bitwise_not", "or": "bitwise_or", "xor": "bitwise_xor"}
_CALLS = {  # operations whose function in JAX takes other arguments
    "argmax": "lax.argmax({0}, *{axes}, {index_dtype})",
    "argmin": "lax.argmin({0}, *{axes}, {index_dtype})",
    "concatenate": "lax.concatenate([{all}], {dimension})",
    "copy": "{0}",
    "copy_p": "{0}",
    "dynamic_slice": "lax.dynamic_slice({0}, [{rest}], {slice_sizes})",
    "iota": "lax.broadcasted_iota({dtype}, {shape}, {dimension})",
    "random_bits": "jax.random.bits({0}, {shape}, 'uint{bit_width}')",
    "random_fold_in": "jax.random.fold_in({0}, {1})",
    "random_seed": "jax.random.key({0})",
    "random_split": "jax.random.split({0}, {shape})",
    "random_unwrap": "jax.random.key_data({0})",
    "random_wrap": "jax.random.wrap_key_data({0})",
    "sharding_constraint": "lax.with_sharding_constraint({0}, {sharding})",
    "sort": "lax.sort(({all},), {dimension}, num_keys={num_keys})",
}


class NoSourceError(Exception):
    """An operation that no line of code can spell: a loop, a callback, a kernel."""


@dataclass(frozen=True, slots=True)
class Step:
    """One operation that ran, with its operands and its results.

    Attributes:
        taken: the keys of the operands; None for constants.
        made: the keys of its results.
    """

    equation: JaxprEqn
    operands: Sequence[Any]
    results: Sequence[Any]
    taken: tuple[str | None, ...]
    made: tuple[str, ...]

    @property
    def name(self) -> str:
        return str(self.equation.primitive.name)

    @property
    def given(self) -> dict[str, Any]:
        return {key: value for key, value in zip(self.taken, self.operands, strict=True) if key is not None}


def is_key(value: Any) -> bool:
    return isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key)


def make_key(value: Any) -> str:
    """A name of a value: random keys and their words have the same digest, and different names."""
    return f"{value.dtype}-{digest_value(value)}"


def write_function(name: str, comment: str, inputs: Mapping[str, str], steps: Sequence[Step], result: str) -> list[str]:
    """A function of the inputs, whose names are given by key, that returns the value with this key."""
    texts, lines = dict(inputs), list[str]()
    uses = [key for step in steps for key in step.given]
    for number, step in enumerate(steps):
        text, keys = write_call(step, texts), step.made
        if len(keys) > 1 or step.name in ("sort", "split"):
            names = [f"t{number}_{part}" for part in range(len(keys))]
            lines.append(f"    ({', '.join(names)},) = {text}")
            texts.update(zip(keys, names, strict=True))
        elif uses.count(keys[0]) == 1 and len(text) < WIDTH // 2 and keys[0] != result:
            texts[keys[0]] = text
        else:
            texts[keys[0]] = f"t{number}"
            lines.append(f"    t{number} = {text}")
    head = f"def {name}({', '.join(inputs.values())}):  # {comment}"
    return [head, *(line for text in (*lines, f"    return {texts[result]}") for line in wrap(text))]


def wrap(text: str) -> list[str]:
    """Lines that are not too long; a break stands inside of parentheses."""
    indent = " " * (len(text) - len(text.lstrip()) + 4)
    return textwrap.wrap(text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def write_call(step: Step, texts: Mapping[str, str]) -> str:
    """The expression of a step, whose operands have these texts by key."""
    name, parameters = step.name, step.equation.params
    is_alone = not step.given
    operands = [
        write_constant(value, typed=is_alone) if key is None else texts[key]
        for key, value in zip(step.taken, step.operands, strict=True)
    ]
    if name in _CALLS:
        shown = {key: show(value) for key, value in parameters.items() if f"{{{key}}}" in _CALLS[name]}
        return _CALLS[name].format(*operands, all=", ".join(operands), rest=", ".join(operands[1:]), **shown)
    function = getattr(jax.lax, _NAMES.get(name, name.replace("-", "_")), None)
    if function is None:
        options = [f"{key}={show(value)}" for key, value in parameters.items()]
        return f"primitives.{name.replace('-', '_')}_p.bind({', '.join([*operands, *options])})"
    arguments = inspect.signature(function).parameters
    options = [
        f"{key}={show(value)}"
        for key, value in parameters.items()
        if key in arguments and value is not None and value != arguments[key].default
    ]
    return f"lax.{function.__name__}({', '.join([*operands, *options])})"


def show(value: Any) -> str:
    """A parameter of an operation as code."""
    if isinstance(value, np.dtype | type):
        return repr(str(np.dtype(value)))
    if isinstance(value, enum.Enum):
        return f"lax.{type(value).__name__}.{value.name}"
    if isinstance(value, NamedSharding):
        return f"NamedSharding(mesh, P{tuple(value.spec)!r})"
    if type(value).__name__.endswith("DimensionNumbers"):
        return f"lax.{value!r}"
    if isinstance(value, tuple):
        return f"({', '.join(map(show, value))}{',' * (len(value) == 1)})"
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return _write_number(value)
    if value is None or isinstance(value, int | str):
        return repr(value)
    raise NoSourceError(f"a parameter of type {type(value).__name__}")


def write_constant(value: Any, *, typed: bool) -> str:
    """A number; with its type if no operand says it, or if a number of Python has another one."""
    array = to_numpy(value)
    if array.size != 1:
        return write_input(value, literal=True)
    text, dtype = _write_number(array.reshape(())), jax.dtypes.canonicalize_dtype(array.dtype)
    if typed or jnp.asarray(array.item()).dtype != dtype:
        return f"jnp.asarray({text}, {str(dtype)!r})"
    return text


def _write_number(number: Any) -> str:
    return str(number).replace("nan", "np.nan").replace("inf", "np.inf")


def write_input(value: Any, *, literal: bool) -> str:
    """An expression for an array like this one: its numbers if they are few or all equal, else others of its scale."""
    array = to_numpy(value)
    if is_key(value):
        return f"jax.random.wrap_key_data(np.array({array.tolist()}, 'uint32'))"
    dtype, shape = str(jax.dtypes.canonicalize_dtype(array.dtype)), array.shape
    if array.size and (array == array.flat[0]).all():
        return f"jnp.full({shape}, {_write_number(array.flat[0])}, {dtype!r})"
    if array.size <= FEW or (literal and array.size <= MOST_NUMBERS):
        numbers = ", ".join(map(_write_number, array.reshape(-1)))
        return f"jnp.asarray([{numbers}], {dtype!r})" + (f".reshape({shape})" if array.ndim != 1 else "")
    if array.dtype == bool:
        return f"jnp.asarray(rng.random({shape}) < {array.mean():.2g})"
    if not jnp.issubdtype(array.dtype, jnp.inexact):
        return f"jnp.asarray(rng.integers({array.min()}, {int(array.max()) + 1}, {shape}), {dtype!r})"
    wide = array.astype(float)
    finite = wide[np.isfinite(wide)]
    drawn = f"normal({finite.mean():.3g}, {finite.std():.3g}, {shape})"
    if finite.min() >= 0:
        drawn = f"uniform({finite.min():.3g}, {finite.max():.3g}, {shape})"
    return f"jnp.asarray(rng.{drawn}, {dtype!r})"


def write_imports(body: str, steps: Sequence[Step]) -> list[str]:
    """What these lines and steps need."""
    lines = ["import jax", "import jax.numpy as jnp", "import numpy as np", "from jax import lax"]
    shardings = [step.equation.params.get("sharding") for step in steps]
    meshes = [sharding.mesh for sharding in shardings if isinstance(sharding, NamedSharding)]
    if "hashlib." in body:
        lines.insert(0, "import hashlib")
    if "primitives." in body:
        lines.append("from jax.extend.core import primitives")
    if meshes:
        lines += [
            "from jax.sharding import Mesh, NamedSharding, PartitionSpec as P",
            f"mesh = Mesh(np.array(jax.devices()).reshape({meshes[0].devices.shape}), {meshes[0].axis_names})",
        ]
    if jax.config.jax_enable_x64:  # type: ignore[attr-defined, unused-ignore]
        lines.append('jax.config.update("jax_enable_x64", True)')
    if "rng." in body:
        lines.append("rng = np.random.default_rng(0)")
    return lines
