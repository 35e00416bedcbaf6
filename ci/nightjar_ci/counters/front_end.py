"""The recorders of JAX's front end in a job's process: times of tracing, lowering and compiling, and their calls.

It is copied into a folder on PYTHONPATH (`on_path`) and imports the standard library only. In: one of two variables,
each a folder. Out: one file of JSON lines per process, each written at once:

- NIGHTJAR_FRONT_END: `[event, thread, begin, end]`, seconds of a monotonic clock, for each event of `jax.monitoring`
  that is named here;
- NIGHTJAR_PYTHON_CALLS: `[where, count]`, the Python functions that were called while JAX traced and lowered, and JAX's
  own in between. Counting takes time, so such a run is not timed.
"""

from __future__ import annotations

import atexit
import cProfile
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from types import ModuleType
from typing import Any

_EVENTS = {
    "/jax/core/compile/jaxpr_trace_duration": "trace",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lower",
    "/jax/core/compile/backend_compile_duration": "compile",
}


_CALLS_OF = ("trace", "lower")


class Lines:
    """A file of JSON lines for this process."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._file: int | None = None
        self._process = 0

    def write(self, line: Sequence[object]) -> None:
        try:
            if self._file is None or self._process != os.getpid():  # also after a fork
                self._process = os.getpid()
                path = os.path.join(self._folder, f"{self._process}.jsonl")  # noqa: PTH118
                self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            os.write(self._file, (json.dumps(line) + "\n").encode())
        except OSError as error:  # a process that may not write there runs on, unrecorded
            print(f"nightjar-ci: the front end of JAX is not recorded: {error}", file=sys.stderr)


class FrontEnd:
    """Writes the events of this process."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines

    def listen(self) -> None:
        monitoring: Any = importlib.import_module("jax.monitoring")
        monitoring.register_event_duration_secs_listener(self.on_duration)

    def on_duration(self, event: str, duration_s: float, **_: object) -> None:
        if event in _EVENTS:
            end = time.perf_counter()
            self._lines.write([_EVENTS[event], threading.get_ident(), end - duration_s, end])


class CallCounter:
    """Counts the Python functions that the thread that imports JAX calls while it traces and lowers, and in between."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self._depth = 0
        self._thread = threading.get_ident()
        self._jax = ""
        self._profile: cProfile.Profile | None = None

    def listen(self) -> None:
        """Has JAX report to this object, and begins to count."""
        monitoring: Any = importlib.import_module("jax.monitoring")
        if sys.getprofile() is not None or not hasattr(monitoring, "register_scalar_listener"):
            return  # another profiler is at work, or this JAX does not say when it begins to trace
        self._jax = os.path.dirname(str(monitoring.__file__)) + os.sep  # noqa: PTH120
        monitoring.register_scalar_listener(self.on_begin)
        monitoring.register_event_duration_secs_listener(self.on_end)
        atexit.register(self._stop, "dispatch")
        self._start()

    def on_begin(self, event: str, *_: object, **__: object) -> None:
        """Notes that tracing or lowering begins."""
        if _EVENTS.get(event) in _CALLS_OF and threading.get_ident() == self._thread:
            if self._depth == 0:
                self._stop("dispatch")
                self._start()
            self._depth += 1

    def on_end(self, event: str, *_: object, **__: object) -> None:
        """Notes that tracing or lowering has ended."""
        if _EVENTS.get(event) in _CALLS_OF and threading.get_ident() == self._thread and self._depth:
            self._depth -= 1
            if self._depth == 0:
                self._stop("trace")
                self._start()

    def _start(self) -> None:
        self._profile = cProfile.Profile(builtins=False)
        try:
            self._profile.enable()
        except ValueError:  # another profiler began meanwhile
            self._profile = None

    def _stop(self, where: str) -> None:
        profile, self._profile = self._profile, None
        if profile is None:
            return
        profile.disable()
        entries: Any = profile.getstats()
        if where == "dispatch":
            entries = [entry for entry in entries if self._is_of_jax(entry.code)]
        self._lines.write([where, sum(entry.callcount for entry in entries)])

    def _is_of_jax(self, code: Any) -> bool:
        return str(getattr(code, "co_filename", "")).startswith(self._jax)


class Finder(importlib.abc.MetaPathFinder):
    """Finds `jax` as Python does, and has it listened to once it is imported."""

    def __init__(self, listener: FrontEnd | CallCounter) -> None:
        self._listener = listener
        self._is_asking = False

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec of `jax`, its loader changed; None for other modules."""
        if name != "jax" or self._is_asking:
            return None
        self._is_asking = True  # a program may look for `jax` long before it imports it
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._is_asking = False
        if spec is None or spec.loader is None:
            return None
        execute, listener = spec.loader.exec_module, self._listener

        def execute_and_listen(module: ModuleType) -> None:
            execute(module)
            listener.listen()

        spec.loader.exec_module = execute_and_listen  # type: ignore[method-assign]
        return spec


def start() -> None:
    """Starts the recorder of this process that the variables ask for."""
    listeners: dict[str, type[FrontEnd] | type[CallCounter]] = {
        "NIGHTJAR_FRONT_END": FrontEnd,
        "NIGHTJAR_PYTHON_CALLS": CallCounter,
    }
    for variable, listener in listeners.items():
        if variable in os.environ:
            sys.meta_path.insert(0, Finder(listener(Lines(os.environ[variable]))))
