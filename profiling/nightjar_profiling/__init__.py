"""Every kernel mapped back to its HLO instruction and Python line (journey 4).

For programs: `annotate` names steps and parts, `capture_steps` traces steps of a training loop. For captures: `load`
opens a capture folder or a raw trace as lazy Polars tables, and in a notebook as its page.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nightjar_profiling.capture.annotation import annotate

if TYPE_CHECKING:
    from nightjar_profiling.capture.steps import capture_steps
    from nightjar_profiling.pipeline.opened import Capture

__all__ = ["annotate", "capture_steps", "load"]

LATER = {"capture_steps": "nightjar_profiling.capture.steps"}  # heavy: imported when they are asked for


def load(path: str | Path) -> Capture:
    """Opens a capture folder, or reads a raw trace: `load("capture").ops` is a lazy Polars frame.

    Raises:
        InputError: there is no such path, it is neither, or it is damaged.
    """
    from nightjar_profiling.pipeline.opened import open_capture

    return open_capture(path)


def __getattr__(name: str) -> Any:
    if name not in LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(LATER[name]), name)
