"""A rich console whose own colours and bars work, and whose contents cannot act.

In: the arguments of a `rich.console.Console`. Out: a console that spells out control characters of its contents. It
writes to the stream below `HarmlessStream`, since its own sequences are wanted; for a GitHub runner, which takes lines
for commands, it has none and writes to `HarmlessStream`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from nightjar_ci.untrusted.terminal import HarmlessStream, OutputClosedError, show_controls


class HarmlessConsole(Console):
    """A console that escapes control characters of its contents."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The segments of a renderable; contents are harmless, rich's own control segments are kept."""
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(show_controls(segment.text), segment.style)

    def on_broken_pipe(self) -> None:
        """The reader has closed the stream; rich itself would exit with code 1, which means "regressed"."""
        raise OutputClosedError from None


def open_console(*, stderr: bool = False, **options: Any) -> HarmlessConsole:
    """A console on stdout or stderr.

    Args:
        options: further arguments of `rich.console.Console`.
    """
    stream = sys.stderr if stderr else sys.stdout
    if isinstance(stream, HarmlessStream) and stream.breaks_commands:
        return HarmlessConsole(**{"file": stream, "force_terminal": False, "color_system": None, **options})
    raw = stream.raw if isinstance(stream, HarmlessStream) else stream
    return HarmlessConsole(file=raw, **options)
