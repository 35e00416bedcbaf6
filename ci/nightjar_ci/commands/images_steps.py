"""How does a command on images show what it is doing? One line that changes on a terminal, a line a step elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def show_steps() -> Iterator[Callable[[str], None]]:
    """Gives a function that shows a step."""
    from rich.console import Console
    from rich.markup import escape

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda step: print(step[:150], file=sys.stderr, flush=True)
        return
    with console.status("starting") as status:
        yield lambda step: status.update(escape(step[: console.width - 4]))
