"""A text stream that makes untrusted text harmless.

In: a text stream, usually stdout or stderr. Out: a stream that shows control characters, line separators and changes of
writing direction as `\\u001b`, so that a job's log, a commit's subject or a file's name can neither move the cursor nor
set the title, and JSON stays the same JSON. On GitHub's runners, which take lines such as `::add-mask::x` for commands,
those are broken up, too. Characters that the stream's encoding lacks are escaped instead of being an error.
Source: docs.github.com, "Workflow commands"; actions/runner: src/Runner.Common/ActionCommand.cs (leading blanks are
skipped; `##[` counts anywhere in a line); Unicode Technical Report 36, section 2.5 (bidirectional spoofing).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from typing import Any, TextIO

# C0 but tab and line feed, DEL and C1; line and paragraph separators; embeddings, overrides and isolates
_ACTING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_COMMAND = re.compile(r"^([^\S\n]*):(?=:)|#(?=#(?:\[|vso\[))", re.MULTILINE)


def show_controls(text: str) -> str:
    r"""The text with its control characters spelled out.

    >>> show_controls("loss\x1b[2K is \u202e 1.0")
    'loss\\u001b[2K is \\u202e 1.0'
    """
    return _ACTING.sub(lambda match: f"\\u{ord(match[0]):04x}", text.replace("\r\n", "\n"))


class OutputClosedError(Exception):
    """The reader of this process's output has closed it."""


class HarmlessStream:
    """A stream that writes the result of `show_controls` to another stream.

    Args:
        raw: the stream that gets the text.
        breaks_commands: whether lines that a GitHub runner takes for commands are broken up.
    """

    def __init__(self, raw: TextIO, *, breaks_commands: bool = False) -> None:
        self.raw = raw
        self.breaks_commands = breaks_commands
        self._line_begun = False

    def write(self, text: str) -> int:
        harmless = show_controls(text)
        if self.breaks_commands:
            harmless = self._break_commands(harmless)
        encoding = self.raw.encoding or "utf-8"
        try:
            self.raw.write(harmless.encode(encoding, "backslashreplace").decode(encoding))
        except BrokenPipeError:
            raise OutputClosedError from None
        return len(text)

    def flush(self) -> None:
        """Flushes the stream; raises like `write`."""
        try:
            self.raw.flush()
        except BrokenPipeError:
            raise OutputClosedError from None

    def _break_commands(self, text: str) -> str:
        """Spells the first character of each command; a line that goes on from the last call begins none with `::`."""
        first_line_goes_on, self._line_begun = self._line_begun, bool(text) and not text.endswith("\n")

        def spell(match: re.Match[str]) -> str:
            if match[1] is None:
                return "\\u0023"
            if match.start() == 0 and first_line_goes_on:
                return match[0]
            return f"{match[1]}\\u003a"

        return _COMMAND.sub(spell, text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)


@contextmanager
def harmless_output(environ: Mapping[str, str]) -> Iterator[None]:
    """Makes stdout and stderr harmless for as long as the context lives; Python has None for one that is closed."""
    breaks_commands = environ.get("GITHUB_ACTIONS") == "true"
    out = HarmlessStream(sys.stdout or StringIO(), breaks_commands=breaks_commands)
    err = HarmlessStream(sys.stderr or StringIO(), breaks_commands=breaks_commands)
    with redirect_stdout(out), redirect_stderr(err):
        yield
