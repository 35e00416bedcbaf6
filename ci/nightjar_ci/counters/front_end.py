"""The recorder of JAX's front end in a job's process: times of tracing, lowering and compiling.

It is copied into a folder on PYTHONPATH (`on_path`) and imports the standard library only. In: NIGHTJAR_FRONT_END, a
folder. Out: one file of JSON lines per process, each written at once: `[event, thread, begin, end]`, seconds of a
monotonic clock, for each event of `jax.monitoring` that is named here.
"""

from __future__ import annotations

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


class Finder(importlib.abc.MetaPathFinder):
    """Finds `jax` as Python does, and has it listened to once it is imported."""

    def __init__(self, listener: FrontEnd) -> None:
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
    sys.meta_path.insert(0, Finder(FrontEnd(Lines(os.environ["NIGHTJAR_FRONT_END"]))))
