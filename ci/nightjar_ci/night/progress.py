"""The progress of a night on stderr: a progress bar, or plain lines if stderr is not a terminal.

In: the start of each job, its last line of output, and its outcome. Out: text on stderr, the first within a second.
"""

from __future__ import annotations

import math
import time
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from nightjar_ci.formats.outcome import Outcome
from nightjar_ci.untrusted.console import open_console

_PLAIN_EVERY_S = 30.0  # a log that is silent for longer looks like a hang


class NightProgress:
    """Shows the progress of a number of jobs; use it as a context manager."""

    def __init__(self, total: int, console: Console | None = None) -> None:
        self._console = console or open_console(stderr=True, highlight=False, soft_wrap=True)
        self._total, self._started, self._done, self._job, self._last = total, 0, 0, "", 0.0
        self._bar = Progress(
            SpinnerColumn(),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}"),
            console=self._console,
            disable=not self._console.is_terminal,
            transient=True,
        )
        self._task = self._bar.add_task("", total=total)

    def __enter__(self) -> NightProgress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def start(self, job_id: str) -> None:
        """A job starts."""
        self._started += 1
        self._job, self._last = job_id, -math.inf  # its first line, on making its environment, is printed at once
        self._bar.update(self._task, description=escape(job_id))
        if not self._console.is_terminal:
            self.say(f"[{self._started}/{self._total}] {job_id}")

    def on_line(self, line: str) -> None:
        """The running job has written a line."""
        if self._console.is_terminal:
            room = max(20, self._console.width - 60 - len(self._job))
            self._bar.update(self._task, description=f"{escape(self._job)}  [dim]{escape(line[:room])}[/dim]")
        elif time.monotonic() - self._last >= _PLAIN_EVERY_S:
            self._last = time.monotonic()
            self.say(f"  {line}")

    def on_line_of(self, job_id: str, line: str) -> None:
        """One of the running jobs has written a line."""
        if job_id != self._job:
            line = f"{job_id}: {line}"
        self.on_line(line)

    def end(self, outcome: Outcome) -> None:
        """A job has ended."""
        self._done += 1
        self._bar.update(self._task, completed=self._done)
        self.say(f"[{self._done}/{self._total}] {outcome.job}: {outcome.state} in {outcome.duration_s:.1f} s")
        if outcome.message is not None:
            self.say(outcome.message)

    def say(self, text: str) -> None:
        """Prints a line above the bar."""
        self._console.print(text, markup=False)
