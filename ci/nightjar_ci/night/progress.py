"""The progress of a night on stderr: a progress bar, or plain lines if stderr is not a terminal.

In: the start of each job, its last line of output, and its outcome. Out: text on stderr, the first within a second. A
night that knows the usual time of each of its jobs also counts down the time that is left (`Countdown`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from nightjar_ci.formats.outcome import Outcome
from nightjar_ci.untrusted.console import open_console

_PLAIN_EVERY_S = 30.0  # a log that is silent for longer looks like a hang


class Countdown:
    """The remaining time of jobs that run one after another, from the usual seconds of each.

    >>> countdown = Countdown({"a": 60.0, "b": 40.0})
    >>> countdown.remaining_s, countdown.end("a", 90.0), countdown.remaining_s
    (100.0, None, 60.0)
    """

    def __init__(self, usual_s: Mapping[str, float]) -> None:
        self._left = dict(usual_s)
        self._expected_s = self._taken_s = 0.0  # of the jobs that have ended

    def end(self, job_id: str, duration_s: float) -> None:
        """A job has ended: the others are expected to be slower than usual by the same factor."""
        if job_id in self._left:
            self._expected_s += self._left.pop(job_id)
            self._taken_s += duration_s

    @property
    def remaining_s(self) -> float:
        pace = self._taken_s / self._expected_s if self._expected_s else 1.0
        return pace * sum(self._left.values())


def describe_remaining(seconds: float) -> str:
    """A time for people.

    >>> describe_remaining(187), describe_remaining(72)
    ('about 3 min', 'about 70 s')
    """
    if seconds >= 120:
        return f"about {seconds / 60:.0f} min"
    return f"about {max(round(seconds, -1), 10):.0f} s"


class NightProgress:
    """Shows the progress of a number of jobs; use it as a context manager."""

    def __init__(self, total: int, console: Console | None = None, countdown: Countdown | None = None) -> None:
        self._countdown = countdown
        self._console = console or open_console(stderr=True, highlight=False, soft_wrap=True)
        self._total, self._numbered, self._done, self._job = total, 0, 0, ""
        self._alone = ""  # the running job, if no other has run at the same time
        self._lock = threading.Lock()  # jobs start in several threads
        self._numbers: dict[str, str] = {}  # of each running job, such as [2/9]
        self._last: dict[str, float] = {}  # when a line of a running job was printed
        self._bar = Progress(
            SpinnerColumn(),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}{task.description}"),
            console=self._console,
            disable=not self._console.is_terminal,
            transient=True,
        )
        self._task = self._bar.add_task("", total=total, left="")

    def __enter__(self) -> NightProgress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def start(self, job_id: str, detail: str = "") -> None:
        """A job starts; a job that runs again starts with a new number."""
        with self._lock:
            self._job, number = job_id, self._give_number()
            self._alone = "" if self._numbers else job_id
            self._numbers[job_id] = number
            left = f"{describe_remaining(self._countdown.remaining_s)} left" if self._countdown else ""
            self._bar.update(self._task, description=escape(job_id + detail), left=f"{left}  " if left else "")
            if not self._console.is_terminal:
                self.say(f"{number} {job_id}{detail}" + (f", {left}" if left else ""))

    def on_line(self, line: str) -> None:
        self.on_line_of(self._job, line)

    def on_line_of(self, job_id: str, line: str) -> None:
        """A running job has written a line: a log shows its first line, then one every `_PLAIN_EVERY_S`."""
        if self._console.is_terminal or time.monotonic() - self._last.get(job_id, -_PLAIN_EVERY_S) >= _PLAIN_EVERY_S:
            self.on_step_of(job_id, line)

    def on_step_of(self, job_id: str, line: str) -> None:
        self._last[job_id] = time.monotonic()
        if job_id != self._alone:
            line = f"{job_id}: {line}"
        if self._console.is_terminal:
            room = max(20, self._console.width - 60 - len(self._job))
            self._bar.update(self._task, description=f"{escape(self._job)}  [dim]{escape(line[:room])}[/dim]")
        else:
            self.say(f"  {line}")

    def end(self, outcome: Outcome) -> None:
        self._done += 1
        self._bar.update(self._task, completed=self._done)
        with self._lock:  # a job of a queue has not started here
            if self._countdown is not None:
                self._countdown.end(outcome.job, outcome.duration_s)
            number = self._numbers.pop(outcome.job, None) or self._give_number()
        self._last.pop(outcome.job, None)
        self.say(f"{number} {outcome.job}: {outcome.state} in {outcome.duration_s:.1f} s")
        if outcome.message is not None:
            self.say(outcome.message)

    def _give_number(self) -> str:
        self._numbered += 1
        return f"[{self._numbered}/{self._total}]"

    def say(self, text: str) -> None:
        self._console.print(text, markup=False)
