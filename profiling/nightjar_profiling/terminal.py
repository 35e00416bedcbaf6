"""Text of traces on a terminal: control characters are spelled out, so that a name in a foreign trace cannot act.

In: stdout or stderr. Out: a stream that writes `\\u001b` for an escape and the like. Colours pass.
The packages do not import each other, so `nightjar_ci.untrusted.terminal` has the same rule for jobs.

Source: Unicode Technical Report 36, section 2.5 (bidirectional spoofing); ECMA-48, 8.3.117 (SGR)
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from io import StringIO
from typing import Any, TextIO

# but tab, line feed and whole colours: C0, DEL and C1; line and paragraph separators; embeddings, overrides, isolates
_ACTING = re.compile("(\x1b\\[[0-9;]*m)|[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def say(text: str) -> None:
    """A line of progress; the terminal may be gone."""
    with suppress(OSError):
        print(f"nightjar-profiling: {text}", file=sys.stderr, flush=True)


def show_controls(text: str) -> str:
    r"""The text with its control characters spelled out.

    >>> show_controls("dot\x1b[2K.1 \x1b[1mis\x1b[0m \u202e 1")
    'dot\\u001b[2K.1 \x1b[1mis\x1b[0m \\u202e 1'
    """
    return _ACTING.sub(lambda match: match[1] or f"\\u{ord(match[0]):04x}", text.replace("\r\n", "\n"))


class HarmlessStream:
    """Writes the `show_controls` form of texts to another stream.

    Where its reader went away, as `head` does, the rest goes nowhere: the exit code is still the command's answer.
    """

    def __init__(self, raw: TextIO) -> None:
        self.raw = raw

    def write(self, text: str) -> int:
        """Writes the text; returns its length."""
        encoding = self.raw.encoding or "utf-8"
        with self._let_go():
            self.raw.write(show_controls(text).encode(encoding, "backslashreplace").decode(encoding))
        return len(text)

    def flush(self) -> None:
        with self._let_go():
            self.raw.flush()

    @contextmanager
    def _let_go(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.raw.fileno())
            os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)


@contextmanager
def harmless_output() -> Iterator[None]:
    """Makes stdout and stderr harmless for as long as the context lives; Python has None for one that is closed."""
    out, err = HarmlessStream(sys.stdout or StringIO()), HarmlessStream(sys.stderr or StringIO())
    with redirect_stdout(out), redirect_stderr(err):
        try:
            yield
        finally:  # Python's own flush at its end would make 120 of the exit code if the reader went away
            out.flush()
            err.flush()
