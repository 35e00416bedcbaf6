"""The Python functions behind a public name of a library."""

import inspect
from collections.abc import Iterator
from types import FunctionType

PACKAGES = ("jax", "optax", "orbax", "flax", "grain")
_UNWRAPPED = ("__wrapped__", "__func__", "func", "fget")  # decorators, methods, partials, properties


def find_functions(value: object) -> Iterator[tuple[str, str]]:
    """The Python functions of these packages behind an object: the function itself, or a class's functions.

    A class without `__init__` and `__call__`, meant for subclassing, has its bases' functions, too. Abstract methods
    and `Protocol` methods do not count: others run in their place.
    """
    members: list[object] = [value]
    owners: list[type] = []
    if isinstance(value, type):
        owners = [value] if {"__init__", "__call__"}.intersection(vars(value)) else list(value.__mro__)
        owners = [owner for owner in owners if not vars(owner).get("_is_protocol")]
        members = [member for owner in owners for member in vars(owner).values()]
        members = [member for member in members if not getattr(member, "__isabstractmethod__", False)]
    functions = set()
    for member in members:
        function = unwrap(member)
        if function is None or function.__code__.co_filename.startswith("<"):  # generated, as by dataclasses
            continue
        module, name = str(function.__globals__.get("__name__", "")), function.__code__.co_qualname
        if owners and not any(name.startswith(f"{owner.__qualname__}.") for owner in owners):
            continue  # a function of elsewhere that the class only holds
        if module.partition(".")[0] in PACKAGES:
            functions.add((module, name))
    yield from sorted(functions)


def unwrap(value: object) -> FunctionType | None:
    """The innermost Python function of a callable, through decorators, methods and partials; None if it has none."""
    for _ in range(20):
        for name in _UNWRAPPED:
            inner = inspect.getattr_static(value, name, None)
            if inner is not None and not isinstance(inner, property):
                inner = getattr(value, name, None)
            if callable(inner) and inner is not value:
                value = inner
                break
        else:
            break
    if isinstance(value, FunctionType):
        return value
    return None
