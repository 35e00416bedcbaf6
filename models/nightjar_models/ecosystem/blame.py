"""Attribution of an error to a pair of versions: the library that raised it, and the one that it called or imported.

In: an exception and its traceback. Out: one or two distributions and their versions. The second is the module that an
import error or an attribute error names, or JAX for an error of JAX's own types; otherwise the next library up the
traceback, or JAX.
"""

from __future__ import annotations

import importlib.metadata
import re
import types
from collections.abc import Callable, Iterator, Sequence

Find = Callable[[str], str | None]
_OWN = "nightjar-models"
_SAME = {"jaxlib": "jax"}  # released together, under one version


def find_pair(error: BaseException, packages: Sequence[str], find: Find | None = None) -> tuple[str, ...]:
    """The distributions that did not go together, the one that met the error first; JAX always last.

    Args:
        error: raised by the cell.
        packages: the distributions that the cell is about, the main one first.
        find: the distribution of a top-level module; by default of this environment.
    """
    find = find or find_distribution
    met = [name for frame in _frames(error) if (name := find(frame)) is not None]
    asked = _asked(error)
    if isinstance(error, ModuleNotFoundError) and asked is not None and find(asked) is None:
        return tuple(met[:1] or packages[:1])  # it lacks a package: there is no second version
    second = find(asked) if asked is not None else None
    named = [*met[:1], *([second] if second else []), *met[1:]]
    libraries = named if set(named) - {"jax"} else packages[:1]  # JAX alone: it was the cell itself that called it
    pair = list(dict.fromkeys([*libraries, "jax"]))[:2]
    return tuple(sorted(pair, key=lambda name: name == "jax"))


def describe_versions(names: Sequence[str]) -> str:
    """Distributions with the versions that are installed, the first `with` the others.

    >>> describe_versions(["no-such-package"])
    'no-such-package (not installed)'
    """
    found = [(name, find_version(name)) for name in names]
    first, *others = [f"{name} {version}" if version else f"{name} (not installed)" for name, version in found]
    if others:
        return f"{first} with {', '.join(others)}"
    return first


def find_version(name: str) -> str | None:
    """The version of an installed distribution, or None."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def find_distribution(module: str) -> str | None:
    """The distribution that provides a module; None for the standard library and Nightjar itself."""
    distributions = importlib.metadata.packages_distributions().get(module.partition(".")[0])
    if not distributions:
        return None
    name = re.sub(r"[-_.]+", "-", distributions[0]).lower()
    if name == _OWN:
        return None
    return _SAME.get(name, name)


def summarize_error(error: BaseException) -> str:
    """The error in one line: its type and the first line of its message.

    >>> summarize_error(ValueError("too big\\nby far"))
    'ValueError: too big'
    """
    text = str(error).strip().partition("\n")[0]
    if text:
        return f"{type(error).__name__}: {text}"
    return type(error).__name__


def _frames(error: BaseException) -> Iterator[str]:
    """The modules of the frames of a traceback, innermost first."""
    frames = []
    traceback = error.__traceback__
    while traceback is not None:
        frames.append(traceback.tb_frame)
        traceback = traceback.tb_next
    yield from (str(frame.f_globals.get("__name__", "")) for frame in reversed(frames))


def _asked(error: BaseException) -> str | None:
    """The module that lacks a name, or whose exception type was raised."""
    if isinstance(error, ImportError):
        return error.name
    if isinstance(error, AttributeError) and error.obj is not None:
        if isinstance(error.obj, types.ModuleType):
            return error.obj.__name__
        return type(error.obj).__module__
    module = type(error).__module__
    if module == "builtins":
        return None
    return module
