"""The start-up file that puts the profiler into a program without a change to its source.

This folder goes first on PYTHONPATH, so Python runs this file at start-up. The file installs a finder that waits for
the program's own `import jax.profiler`, then runs the `sitecustomize` that it hides. In a program that never imports
JAX, nothing but this finder is added. JAX is never imported early, because programs set XLA_FLAGS before they import
it. Standard library only: the file runs in the program's Python, whichever that is.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

HERE = os.path.dirname(os.path.realpath(__file__))  # noqa: PTH120 - pathlib would slow the start of every program


class ProfilerFinder:
    """Finds `jax.profiler` as Python would, and arms the tracer once that module has been executed."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Leaves every other module to the finders behind it."""
        if name != "jax.profiler":
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_arm(module: ModuleType) -> None:
            execute(module)
            arm(module)

        setattr(spec.loader, "exec_module", execute_and_arm)  # noqa: B010 - a method of this one loader
        return spec


def load(name: str) -> ModuleType:
    """Loads a module from this file's folder, in a package made for it that hides no other."""
    package = sys.modules.setdefault("_nightjar_hook", ModuleType("_nightjar_hook"))
    package.__path__ = [HERE]
    return importlib.import_module(f"_nightjar_hook.{name}")


def arm(profiler: ModuleType) -> None:
    """Loads the tracer, and arms it; the program continues even if that fails."""
    try:
        load("tracer").arm(profiler)
    except Exception as error:
        print(f"nightjar-profiling: this program is not traced: {error!r}", file=sys.stderr)


def make_way() -> None:
    """Runs the `sitecustomize` that this one hides, if there is any."""
    sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry or ".") != HERE]
    this = sys.modules.pop("sitecustomize")
    try:
        importlib.import_module("sitecustomize")
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        sys.modules.setdefault("sitecustomize", this)


if "NIGHTJAR_CAPTURE_RAW" in os.environ:
    sys.meta_path.insert(0, ProfilerFinder())
    try:
        load("executed").listen()
    except Exception as error:
        print(f"nightjar-profiling: executed text is not kept: {error!r}", file=sys.stderr)
make_way()
