"""Annotations with which a program names its parts, for every profiler at once.

In: a name, and for a step of the training loop its number. Out: a context manager and decorator. It opens an NVTX range
if the `nvtx` package is installed, and a `jax.profiler` annotation if the program has imported JAX; this module never
imports it. With a step number, the annotation is a `StepTraceAnnotation`, which `capture --steps` and `capture_steps`
listen to.

Source: https://docs.jax.dev/en/latest/_autosummary/jax.profiler.StepTraceAnnotation.html, https://nvtx.readthedocs.io
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache, wraps
from importlib import import_module
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class annotate:  # noqa: N801 - used like a function
    """Names the code that runs inside, in every active profiler.

    Args:
        name: as the profiler shows it.
        step: number of a step of the training loop.

    >>> with annotate("train", step=3):
    ...     loss = 0.5
    >>> @annotate("evaluate")
    ... def evaluate() -> float:
    ...     return loss
    >>> evaluate()
    0.5
    """

    __slots__ = ("name", "open", "step")

    def __init__(self, name: str, step: int | None = None) -> None:
        self.name = name
        self.step = step
        self.open: list[Any] = []

    def __enter__(self) -> annotate:
        nvtx = find_nvtx()
        if nvtx is not None:
            nvtx.push_range(self.name if self.step is None else f"{self.name} {self.step}")
        profiler = getattr(sys.modules.get("jax"), "profiler", None)
        annotation = None
        if profiler is not None and self.step is None:
            annotation = profiler.TraceAnnotation(self.name)
        elif profiler is not None:
            annotation = profiler.StepTraceAnnotation(self.name, step_num=self.step)
        if annotation is not None:
            annotation.__enter__()
        self.open.append((nvtx, annotation))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        nvtx, annotation = self.open.pop()
        if annotation is not None:
            annotation.__exit__(kind, error, traceback)
        if nvtx is not None:
            nvtx.pop_range()

    def __call__(self, function: Callable[P, T]) -> Callable[P, T]:
        """Decorates a function: every call is named; threads and recursion are distinguished."""

        @wraps(function)
        def annotated(*args: P.args, **kwargs: P.kwargs) -> T:
            with annotate(self.name, self.step):
                return function(*args, **kwargs)

        return annotated


@cache
def find_nvtx() -> Any:
    """The module `nvtx`, or None if it is not installed."""
    try:
        return import_module("nvtx")
    except ImportError:
        return None
