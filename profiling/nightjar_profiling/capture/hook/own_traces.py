"""Traces that the program itself takes with JAX's profiler, of which only one can run in a process.

Standard library only: it runs in the Python of the program, whichever that is.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .tracer import Tracer


def share_with_own_traces(tracer: Tracer) -> list[tuple[ModuleType, str, Any]]:
    """Lets the program trace itself, of which only one trace can run in a process.

    If it starts its own, ours ends; if ours was to start during it, a copy of its own is ours.

    Returns:
        The replaced functions: module, name and function.
    """
    profiler = tracer.profiler

    def start_trace(log_dir: Any, *args: Any, **kwargs: Any) -> Any:
        tracer.stop(f"the program started a trace of its own into {log_dir}, which ended this one")
        earlier, tracer.own_trace = tracer.own_trace, Path(log_dir).absolute()
        try:
            return tracer.start_trace(log_dir, *args, **kwargs)
        except BaseException:
            tracer.own_trace = earlier
            raise

    def guarded(stop: Callable[[], Any]) -> Callable[[], Any]:
        @functools.wraps(stop)
        def stop_own() -> Any:
            if tracer.state == "tracing":  # that one is not the program's
                raise RuntimeError("No profile started")
            result = stop()
            tracer.adopt_own_trace()
            return result

        return stop_own

    functools.update_wrapper(start_trace, tracer.start_trace)
    new = {"start_trace": start_trace, "stop_trace": guarded(tracer.stop_trace)}
    replaced = []
    for module in {id(module): module for module in (profiler, sys.modules[tracer.start_trace.__module__])}.values():
        for name, function in new.items():
            replaced.append((module, name, getattr(module, name)))
            setattr(module, name, function)
    return replaced
