"""Costs of the Python side of a step: tracing, lowering, and the call of the compiled step.

Times depend on the machine and on its other load. The number of Python functions that are called does not: it repeats
to about one in ten thousand, so that a slower tracer shows on a loaded machine, too.
"""

from __future__ import annotations

import cProfile
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax

_LOWERED = "/jax/core/compile/jaxpr_to_mlir_module_duration"
_LOADED = "/jax/compilation_cache/cache_hits"


@dataclass
class Calls:
    """The number of Python functions that were called; None if another profiler was left undisturbed."""

    count: int | None = None


@contextmanager
def count_calls() -> Iterator[Calls]:
    """Counts the Python functions that are called within; functions in C are not counted."""
    calls, profile = Calls(), cProfile.Profile(builtins=False)
    if _is_profiled():
        yield calls
        return
    profile.enable()
    try:
        yield calls
    finally:
        profile.disable()
        # Python 3.14 counts functions in C all the same: their code is a name
        calls.count = sum(entry.callcount for entry in profile.getstats() if not isinstance(entry.code, str))


def _is_profiled() -> bool:
    """Whether a profiler of Python is at work, which would see nothing more after ours, or not let ours begin."""
    monitoring: Any = getattr(sys, "monitoring", None)
    if monitoring is not None and monitoring.get_tool(monitoring.PROFILER_ID) is not None:
        return True
    return sys.getprofile() is not None


def time_lowering(lower: Callable[[], Any]) -> tuple[Any, float, float]:
    """Traces and lowers a program.

    Args:
        lower: makes the lowered program.

    Returns:
        The lowered program, and the seconds of tracing and of lowering to StableHLO.
    """
    lowerings: list[float] = []

    def listen(event: str, duration_secs: float, **_: str | int) -> None:
        if event == _LOWERED:
            lowerings.append(duration_secs)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        begin = time.perf_counter()
        lowered = lower()
        total = time.perf_counter() - begin
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    return lowered, total - sum(lowerings), sum(lowerings)


@contextmanager
def note_loads() -> Iterator[list[str]]:
    """Notes each program that JAX loads from its compilation cache within, and so does not compile."""
    loads: list[str] = []

    def listen(event: str, **_: str | int) -> None:
        if event == _LOADED:
            loads.append(event)

    jax.monitoring.register_event_listener(listen)
    try:
        yield loads
    finally:
        jax.monitoring.unregister_event_listener(listen)
