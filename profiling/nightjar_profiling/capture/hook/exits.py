"""The ends of a traced program at which Python runs no exit handlers, or is disturbed in them: signals and `os._exit`.

Standard library only: it runs in the Python of the program, whichever that is.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .tracer import Tracer


def arm_exits(tracer: Tracer) -> None:
    """Ends the trace also if the program exits by `os._exit`, or by a signal once the trace is on."""
    tracer.guards = True
    leave = os._exit

    @functools.wraps(leave)
    def _exit(status: int) -> Any:
        try:
            tracer.leave()
        finally:
            leave(status)

    os._exit = _exit


def guard(tracer: Tracer) -> None:
    """A signal that would end the program at once ends the trace first."""

    def leave(number: int, frame: FrameType | None) -> None:
        tracer.leave()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, leave)


@contextlib.contextmanager
def undisturbed(drop: tuple[signal.Signals, ...] = ()) -> Iterator[None]:
    """Blocks signals: one in the midst of writing a trace would lose it.

    Args:
        drop: signals that are not passed on afterwards.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: dict[int, None] = {}

    def note(number: int, frame: FrameType | None) -> None:
        came[number] = None

    handlers = ((number, signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    earlier = {number: handler for number, handler in handlers if handler not in (None, signal.SIG_IGN)}
    for number in earlier:
        signal.signal(number, note)
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
        for caught in came:
            if caught not in drop:
                signal.raise_signal(caught)
