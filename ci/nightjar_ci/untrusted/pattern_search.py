"""Regular expressions over the output of a job, with a deadline.

In: a pattern and text. Out: its matches. Python's `re` backtracks, so a pattern such as `(a+)+$` can run practically
forever on a line that a job chose, and cannot be stopped within a process. A child process (`pattern_child.py`)
searches, and is killed at the deadline.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nightjar_ci.errors import NightjarError

SEARCH_S = 60.0  # a plain pattern searches 16 MiB in a second
_CHILD = Path(__file__).with_name("pattern_child.py")


class SlowPatternError(NightjarError):
    """A search exceeded its deadline, or needed too much memory."""


def find_last(pattern: str, text: str, deadline_s: float = SEARCH_S) -> str | None:
    return next(_search("last", pattern, text, deadline_s), None)


def find_names(pattern: str, text: str, deadline_s: float = SEARCH_S) -> list[str]:
    """The distinct groups of the first matches, at most five."""
    return list(_search("names", pattern, text, deadline_s))


def match_lines(pattern: str, text: str, deadline_s: float = SEARCH_S) -> Iterator[tuple[int, dict[str, str]]]:
    """The lines with a match: their number, starting at 1, and the named groups that matched."""
    return ((number, groups) for number, groups in _search("lines", pattern, text, deadline_s))


def _search(mode: str, pattern: str, text: str, deadline_s: float) -> Iterator[Any]:
    request = json.dumps([mode, pattern]).encode() + b"\n" + text.encode("utf-8", errors="surrogatepass")
    command = [sys.executable, "-I", "-S", str(_CHILD)]
    try:
        done = subprocess.run(command, input=request, capture_output=True, timeout=deadline_s, check=False)
    except subprocess.TimeoutExpired:
        raise SlowPatternError(
            f"the pattern '{pattern}' took longer than {deadline_s:g} s on {len(text):,} characters of output.",
            "nested repetitions such as (a+)+ try every way to split a line: anchor the pattern, or simplify it",
        ) from None
    if done.returncode != 0:
        problem = done.stderr.decode(errors="replace").strip().rpartition("\n")[2] or f"exit code {done.returncode}"
        raise SlowPatternError(f"the pattern '{pattern}' could not be searched: {problem}.")
    return map(json.loads, done.stdout.splitlines())
