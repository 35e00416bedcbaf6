"""How far is it? A progress bar on a terminal, a plain line now and then elsewhere; always on stderr.

In: what is being done, and the steps done. Out: lines. Before the first step, and while the model is evaluated, they
say what takes so long: a large model compiles for minutes.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

PLAIN_LINES = 10
SILENT_S = 30.0  # at most, where there is no bar


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where to tell.

    Attributes:
        step: called with the number of steps done and the loss.
        phase: called with what begins, such as `compiling the train step`.
    """

    step: Callable[[int, float], None] = lambda step, loss: None
    phase: Callable[[str], None] = lambda name: None


@contextlib.contextmanager
def show_progress(title: str, total: int, shown: bool = True) -> Iterator[Progress]:
    """Yields where to tell what is done; it is silent unless `shown`."""
    if not shown:
        yield Progress()
        return
    if not sys.stderr.isatty():
        with _repeated() as tell:
            every = max(1, total // PLAIN_LINES)

            def report(step: int, loss: float) -> None:
                if step % every == 0 or step == total:
                    tell(f"{title}: step {step}/{total}, loss {loss:.4f}")

            yield Progress(step=report, phase=lambda name: tell(f"{title}: {name}"))
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
def _repeated() -> Iterator[Callable[[str], None]]:
    """Yields what prints a line, and prints the last one again where none followed for so long."""
    said: list[tuple[float, str]] = []
    ended = threading.Event()

    def tell(line: str) -> None:
        print(line, file=sys.stderr, flush=True)
        said[:] = [(time.monotonic(), line)]

    def repeat() -> None:
        while not ended.wait(SILENT_S):
            for begin, line in said[:]:
                if (passed := time.monotonic() - begin) >= SILENT_S:
                    print(f"{line} ({passed:.0f} s)", file=sys.stderr, flush=True)

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield tell
    finally:
        ended.set()
        thread.join()
