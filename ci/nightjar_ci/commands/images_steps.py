"""Progress of the image commands: one changing line on a terminal, otherwise a line per step."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def show_steps() -> Iterator[Callable[[str], None]]:
    """A context manager whose value is a function that shows a step."""
    from rich.markup import escape

    from nightjar_ci.untrusted.console import open_console

    console = open_console(stderr=True)
    if not console.is_terminal:
        yield lambda step: print(step[:150], file=sys.stderr, flush=True)
        return
    with console.status("starting") as status:
        yield lambda step: status.update(escape(step[: console.width - 4]))
