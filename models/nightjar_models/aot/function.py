"""A user's jitted function: its address, the shapes of its arguments, and its lowering for given devices.

In: an address such as `train.py:train_step` or `package.module:function`, its arguments as a text of shapes or as the
address of a function that makes them, and devices. Out: the result of `jax.jit(...).lower`. The arguments are made
under `jax.eval_shape`, so neither a model nor a batch takes memory.

Functions of `jax.jit`, `nnx.jit`, `equinox.filter_jit` and plain ones are taken. Equinox lowers arrays only, no shapes;
its functions are lowered inside of a `jax.jit`, without the donation that they ask for.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import math
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from nightjar_models.errors import InputError, did_you_mean

_ARRAY = re.compile(r"(?P<type>[a-z]+[0-9]*(?:e[0-9a-z]+)?)\[(?P<sizes>[0-9, ]*)\]")
_SEPARATOR = re.compile(r",(?![^\[]*\])")
_SHORT = {"f": "float", "i": "int", "s": "int", "u": "uint", "bf": "bfloat", "c": "complex"}
SHAPES = "expected shapes such as f32[8,128],i32[8], or the address of a function that returns the arguments"


def find_function(address: str) -> Any:
    """The object at an address."""
    module_name, colon, name = address.rpartition(":")
    if not colon or not module_name or not name:
        raise InputError(f"{address}: expected module:function or file.py:function.", "such as train.py:train_step")
    module = _import(module_name, address)
    value = module
    for part in name.split("."):
        if not hasattr(value, part):
            hint = did_you_mean(part, [key for key in vars(value) if not key.startswith("_")])
            raise InputError(f"{address}: {module_name} has no {part!r}.", hint)
        value = getattr(value, part)
    if not callable(value):
        raise InputError(f"{address}: expected a function, found {type(value).__name__}.")
    return value


def _import(name: str, address: str) -> Any:
    path = Path(name)
    if path.suffix == ".py":
        if not path.is_file():
            raise InputError(f"{address}: no such file: {path}.", "give its path from here, such as src/train.py")
        folder, module = path.resolve().parent, path.stem
    else:
        folder, module = Path.cwd(), name
    sys.path.insert(0, str(folder))
    try:
        imported = importlib.import_module(module)
    except Exception as error:
        hint = "the module is imported as it is: keep what it runs under `if __name__ == '__main__':`"
        if isinstance(error, ModuleNotFoundError) and error.name == module:
            hint = "give the path of its file, or run the command in the folder that holds it"
        raise InputError(f"{address}: importing {module}: {type(error).__name__}: {error}.", hint) from error
    found = getattr(imported, "__file__", None)
    if path.suffix == ".py" and (found is None or Path(found).resolve() != path.resolve()):
        raise InputError(f"{address}: the name {module} belongs to {found or 'a module of Python'}.", "rename the file")
    return imported


def make_arguments(text: str | None) -> tuple[Any, ...]:
    """The arguments, each array as `jax.ShapeDtypeStruct`.

    Args:
        text: shapes such as `f32[8,128],i32[8]`, the address of a function without parameters that returns a tuple
            of arguments, or None for no arguments.
    """
    if text is None:
        return ()
    if ":" not in text:
        return tuple(parse_shape(part.strip()) for part in _SEPARATOR.split(text))
    make = find_function(text)
    try:
        arguments = make_abstract(make)
    except Exception as error:
        raise InputError(f"--args {text}: {type(error).__name__}: {error}.") from error
    if not isinstance(arguments, tuple):
        raise InputError(
            f"--args {text}: expected a tuple of arguments, found {type(arguments).__name__}.",
            "return (argument,) where there is one",
        )
    return arguments


def parse_shape(text: str) -> jax.ShapeDtypeStruct:
    """A shape in XLA's spelling.

    >>> parse_shape("bf16[8,128]")
    ShapeDtypeStruct(shape=(8, 128), dtype=bfloat16)
    """
    match = _ARRAY.fullmatch(text)
    if match is None:
        raise InputError(f"--args {text}: {SHAPES}.")
    spelt = re.fullmatch(r"([a-z]+)([0-9]+)(e[0-9a-z]+)?", match["type"])
    name = match["type"]
    if spelt is not None and spelt[1] in _SHORT:
        name = _SHORT[spelt[1]] + "_".join(filter(None, spelt.groups()[1:]))
    try:
        dtype = jax.numpy.dtype({"pred": "bool"}.get(name, name))
    except TypeError:
        raise InputError(f"--args {text}: {match['type']} is not a type of JAX.", "such as f32, bf16, i32") from None
    sizes = tuple(int(size) for size in match["sizes"].split(",") if size.strip())
    return jax.ShapeDtypeStruct(sizes, dtype)  # type: ignore[no-untyped-call]


def make_abstract(make: Callable[[], Any]) -> Any:
    """The result of `make`, each array as `jax.ShapeDtypeStruct`; other leaves, such as functions, stay."""
    treedef: Any = None
    others: list[Any] = []

    def trace() -> list[Any]:
        nonlocal treedef
        leaves, treedef = jax.tree.flatten(make())
        others[:] = [None if _is_array(leaf) else leaf for leaf in leaves]
        return [leaf for leaf in leaves if _is_array(leaf)]

    shapes = iter(jax.eval_shape(trace))
    return jax.tree.unflatten(treedef, [next(shapes) if other is None else other for other in others])


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray | np.generic)


def make_mesh(devices: Sequence[Any], text: str | None) -> Mesh:
    """A mesh of all devices with the user's own axes, such as `data=4,model=2`; one axis `data` by default."""
    axes: dict[str, int] = {"data": len(devices)}
    if text is not None:
        parts = [re.fullmatch(r"([A-Za-z_]\w*)=([1-9][0-9]{0,5})", part.strip()) for part in text.split(",")]
        if None in parts:
            raise InputError(f"--mesh {text}: expected axes and sizes, such as data=4,model=2.")
        axes = {part[1]: int(part[2]) for part in parts if part is not None}
        if math.prod(axes.values()) != len(devices) or len(axes) != len(parts):
            raise InputError(f"--mesh {text}: expected distinct axes of {len(devices)} devices in all.")
    grid = np.array(devices).reshape(tuple(axes.values()))
    return Mesh(grid, tuple(axes), axis_types=(jax.sharding.AxisType.Auto,) * len(axes))


def place_arguments(arguments: tuple[Any, ...], mesh: Mesh, address: str) -> tuple[Any, ...]:
    """The arguments on a mesh: a shape with a `NamedSharding` keeps its axes, any other is on every device."""

    def put(leaf: Any) -> Any:
        if not isinstance(leaf, jax.ShapeDtypeStruct):
            return leaf
        spec = PartitionSpec()  # type: ignore[no-untyped-call]
        if isinstance(leaf.sharding, NamedSharding):
            spec = leaf.sharding.spec
        try:
            sharding = NamedSharding(mesh, spec)
        except ValueError as error:
            raise InputError(f"--args {address}: {error}", "name the mesh's axes with --mesh") from None
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)  # type: ignore[no-untyped-call]

    return tuple(jax.tree.map(put, argument) for argument in arguments)


def lower_function(function: Any, arguments: tuple[Any, ...]) -> Any:
    """The lowered function, of which `compile` takes compiler options."""
    if hasattr(function, "lower") and not type(function).__module__.startswith("equinox"):
        lowered = function.lower(*arguments)
        return getattr(lowered, "lowered", lowered)  # Flax wraps JAX's
    if any(isinstance(node, nnx.Pytree) for node in arguments):
        return nnx.jit(function).lower(*arguments).lowered
    names = name_parameters(function)
    paths, treedef = jax.tree_util.tree_flatten_with_path(arguments)
    leaves = {_name_leaf(path, names): leaf for path, leaf in paths}

    @functools.wraps(function, updated=())
    def outer(**arrays: Any) -> list[Any]:
        whole = jax.tree.unflatten(treedef, [arrays.get(name, leaf) for name, leaf in leaves.items()])
        return [leaf for leaf in jax.tree.leaves(function(*whole)) if _is_array(leaf)]

    del outer.__wrapped__  # its parameters are not the function's
    shapes = {name: leaf for name, leaf in leaves.items() if isinstance(leaf, jax.ShapeDtypeStruct)}
    return jax.jit(outer).lower(**shapes)


def _name_leaf(path: Any, names: Sequence[str]) -> str:
    """Such as `model.layers.0.weight`; a leaf that `*args` takes has the number of its argument."""
    number = path[0].idx
    root = names[number] if number < len(names) else str(number)
    return ".".join(filter(None, (root, jax.tree_util.keystr(path[1:], simple=True, separator="."))))


def name_parameters(function: Any) -> tuple[str, ...]:
    """The names of a function's positional parameters."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(name for name, one in inspect.signature(function).parameters.items() if one.kind in kinds)


def name_variables(function: Any, arguments: tuple[Any, ...]) -> dict[str, tuple[str, ...]]:
    """The variables of each argument that is an NNX module or optimizer, in the order in which `nnx.jit` takes them."""
    return {
        name: tuple(".".join(map(str, path)) for path, _ in nnx.to_flat_state(nnx.state(argument)))
        for name, argument in zip(name_parameters(function), arguments, strict=False)
        if isinstance(argument, nnx.Pytree)
    }
