"""What can every executor do? Run one job in a prepared environment and say what became of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from nightjar_ci.environments import PreparedEnvironment
from nightjar_ci.job import Job
from nightjar_ci.outcome import Outcome

OnLine = Callable[[str], None]


class Executor(Protocol):
    """A place where jobs run."""

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of environment that it can run a job in."""

    def run(self, job: Job, environment: PreparedEnvironment, folder: Path, on_line: OnLine | None = None) -> Outcome:
        """Runs a job to its end; a job that fails is an outcome, not an exception.

        Args:
            job: what to run.
            environment: what to run it in; of one of `kinds`.
            folder: an existing empty folder: the job's `{out}`, and the place of `stdout.log` and `stderr.log`.
            on_line: called with the last line that the job has written, for progress.

        Returns:
            The outcome, from the process's end alone: the caller reads the result.
        """
