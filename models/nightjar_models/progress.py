"""How far is it? A progress bar on a terminal, a plain line now and then elsewhere; always on stderr."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

PLAIN_LINES = 10


@contextlib.contextmanager
def show_progress(title: str, total: int, shown: bool = True) -> Iterator[Callable[[int, float], None]]:
    """Yields a function to be called with the number of steps done and the loss; it is silent unless `shown`."""
    if not shown:
        yield lambda step, loss: None
        return
    if not sys.stderr.isatty():
        every = max(1, total // PLAIN_LINES)

        def report(step: int, loss: float) -> None:
            if step % every == 0 or step == total:
                print(f"{title}: step {step}/{total}, loss {loss:.4f}", file=sys.stderr, flush=True)

        yield report
        return

    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=total)
        yield lambda step, loss: bar.update(task, completed=step, description=f"{title}  loss {loss:.4f}")
