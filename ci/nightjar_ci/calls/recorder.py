"""The recorder of a job's process: which functions of chosen packages run, and which public names its code uses.

It is copied into a folder on PYTHONPATH (`counters/on_path`), so that every Python process of the job starts it, and
imports the standard library only. In: the variables NIGHTJAR_CALLS (folder), NIGHTJAR_CALLS_PACKAGES (`jax,flax`) and
NIGHTJAR_CALLS_USED (a file with one public name per line). Out: one file of JSON lines per process, each written at
once, so that a killed process loses nothing but the last kind:

- `["function", module, qualified name]`: this function ran, whoever called it;
- `["name", module, attribute, package, definition, [[module, qualified name], ...]]`: code of another `package` read
  this attribute of a public module. The list holds the functions behind the object;
- `["alias", name, definition]`, at the end: the definition of a name of the file; libraries give one object many names.

Functions are seen by `sys.setprofile`, names by a class of the modules. Both cost time: recorded jobs are not timed.
"""

from __future__ import annotations

import atexit
import importlib
import importlib.abc
import importlib.machinery
import inspect
import json
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

_UNWRAPPED = ("__wrapped__", "__func__", "func", "fget")  # decorators, methods, partials, properties


class Recorder:
    """Writes the calls of one process."""

    def __init__(self, folder: Path, packages: frozenset[str]) -> None:
        self._folder = folder
        self._packages = packages
        self._codes: dict[
            int, CodeType
        ] = {}  # by id: the hash of a code object reads all of it; kept, so that ids stay
        self._functions: set[tuple[str, str]] = set()
        self._names: set[tuple[str, str, str]] = set()
        self._file: int | None = None
        self._process = 0

    def on_event(self, frame: FrameType, event: str, argument: object) -> None:
        """The profile function of Python: notes the function of a frame that begins."""
        code = frame.f_code
        if event != "call" or id(code) in self._codes:
            return
        self._codes[id(code)] = code
        module = str(frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] in self._packages and (module, code.co_qualname) not in self._functions:
            self._functions.add((module, code.co_qualname))
            self._write(["function", module, code.co_qualname])

    def on_name(self, module: str, attribute: str, value: object, reader: str) -> None:
        """Notes that code of a module `reader` read an attribute of a public module."""
        package = reader.partition(".")[0]
        owner = module.partition(".")[0]
        if attribute.startswith("_") or package in (
            owner,
            "importlib",
            "_frozen_importlib",
            "sitecustomize",
            "nightjar_recorder",
        ):
            return
        if (module, attribute, package) in self._names:
            return
        self._names.add((module, attribute, package))
        functions = list(find_functions(value, self._packages))
        self._write(["name", module, attribute, package, find_definition(value), functions])

    def write_aliases(self, names: Sequence[str]) -> None:
        """Notes the definition of each name whose module this process has imported."""
        for name in names:
            module, _, attribute = name.rpartition(".")
            value = vars(sys.modules[module]).get(attribute) if module in sys.modules else None
            if (definition := find_definition(value)) is not None:
                self._write(["alias", name, definition])

    def _write(self, line: Sequence[object]) -> None:
        if self._file is None or self._process != os.getpid():  # also after a fork
            self._process = os.getpid()
            path = self._folder / f"{self._process}.jsonl"
            try:
                self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            except OSError as error:  # a process that may not write there runs on, unrecorded
                sys.setprofile(None)
                print(f"nightjar-ci calls: {path}: {error}", file=sys.stderr)
                return
        os.write(self._file, (json.dumps(line) + "\n").encode())


def find_definition(value: object) -> str | None:
    """The definition of a class or function; None for other objects, which are equal without being the same."""
    if isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__}"
    function = unwrap(value)
    if function is None:
        return None
    return f"{function.__globals__.get('__name__')}.{function.__qualname__}"


def find_functions(value: object, packages: frozenset[str]) -> Iterator[tuple[str, str]]:
    """The Python functions of some packages behind an object: the function itself, or a class's functions.

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
        if module.partition(".")[0] in packages:
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


def watch_module(module: ModuleType, recorder: Recorder) -> None:
    """Gives a module a class that notes who reads its attributes."""
    if type(module) is not ModuleType:
        return
    name = module.__name__

    class WatchedModule(ModuleType):
        """A module that notes who reads its attributes."""

        def __getattribute__(self, attribute: str) -> Any:
            value = ModuleType.__getattribute__(self, attribute)
            reader = sys._getframe(1).f_globals.get("__name__", "")
            recorder.on_name(name, attribute, value, str(reader))
            return value

        def __reduce__(self) -> tuple[object, ...]:
            return importlib.import_module, (name,)

    module.__class__ = WatchedModule


class Finder(importlib.abc.MetaPathFinder):
    """Finds modules as Python does, and has the public ones of the packages watched once they are executed."""

    def __init__(self, recorder: Recorder, packages: frozenset[str]) -> None:
        self._recorder = recorder
        self._packages = packages

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec of a public module of the packages, its loader changed; None for others."""
        parts = name.split(".")
        if parts[0] not in self._packages or any(part.startswith("_") for part in parts):
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                self._change(spec.loader)
                return spec
        return None

    def _change(self, loader: Any) -> None:
        execute = getattr(loader, "exec_module", None)
        if execute is None:  # a namespace package
            return
        recorder = self._recorder

        def execute_and_watch(module: ModuleType) -> None:
            execute(module)
            watch_module(module, recorder)

        loader.exec_module = execute_and_watch


def start() -> None:
    """Starts the recorder of this process, if the variables ask for it."""
    if "NIGHTJAR_CALLS" not in os.environ:
        return
    packages = frozenset(os.environ["NIGHTJAR_CALLS_PACKAGES"].split(","))
    recorder = Recorder(Path(os.environ["NIGHTJAR_CALLS"]), packages)
    if "NIGHTJAR_CALLS_USED" in os.environ:
        names = Path(os.environ["NIGHTJAR_CALLS_USED"]).read_text(encoding="utf-8").split()
        atexit.register(recorder.write_aliases, names)
    sys.meta_path.insert(0, Finder(recorder, packages))
    threading.setprofile(recorder.on_event)
    sys.setprofile(recorder.on_event)
