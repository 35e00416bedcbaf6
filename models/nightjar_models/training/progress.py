"""Progress on stderr: a bar on a terminal, otherwise a plain line from time to time.

In: the current phase and the number of steps done. Out: lines. They also name the phases before the first step and
after the last, since a large model compiles for minutes.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

PLAIN_LINES = 10
SILENT_S = 30.0  # longest time without a line if there is no bar


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Callbacks that report progress.

    Attributes:
        step: called with the number of steps done and the loss.
        phase: called with the name of a phase when it begins, such as `compiling the train step`.
    """

    step: Callable[[int, float], None] = lambda step, loss: None
    phase: Callable[[str], None] = lambda name: None


SILENT = Progress()


@contextlib.contextmanager
def show_progress(title: str, total: int, shown: bool = True) -> Iterator[Progress]:
    """Yields the callbacks; they print nothing unless `shown`."""
    if not shown:
        yield SILENT
        return
    if not sys.stderr.isatty():
        with _repeating_printer() as print_line:
            every = max(1, total // PLAIN_LINES)

            def report(step: int, loss: float) -> None:
                if step % every == 0 or step == total:
                    print_line(f"{title}: step {step}/{total}, loss {loss:.4f}")

            yield Progress(step=report, phase=lambda name: print_line(f"{title}: {name}"))
        return

    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=total)
        yield Progress(
            step=lambda step, loss: bar.update(task, completed=step, description=f"{title}  loss {loss:.4f}"),
            phase=lambda name: bar.update(task, description=f"{title}  {name}"),
        )


@contextlib.contextmanager
def _repeating_printer() -> Iterator[Callable[[str], None]]:
    """Yields a function that prints a line; repeats the last line when none followed for `SILENT_S`."""
    last: list[tuple[float, str]] = []
    ended = threading.Event()

    def print_line(line: str) -> None:
        print(line, file=sys.stderr, flush=True)
        last[:] = [(time.monotonic(), line)]

    def repeat() -> None:
        while not ended.wait(SILENT_S):
            for begin, line in last[:]:
                if (passed := time.monotonic() - begin) >= SILENT_S:
                    print(f"{line} ({passed:.0f} s)", file=sys.stderr, flush=True)

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield print_line
    finally:
        ended.set()
        thread.join()
