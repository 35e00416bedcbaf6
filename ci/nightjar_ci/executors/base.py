"""What can every executor do? Run one job in a prepared environment and say what became of it.

One with a queue of its own can be given many jobs at once (`BatchExecutor`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from nightjar_ci.environments.prepare import PreparedEnvironment
from nightjar_ci.formats.job import Job
from nightjar_ci.formats.outcome import Outcome
from nightjar_ci.untrusted.masking import NO_MASK, Mask

OnLine = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Task:
    """A job, what it runs in, where it leaves its results, who hears its last line, and what hides its secrets."""

    job: Job
    environment: PreparedEnvironment
    folder: Path
    on_line: OnLine | None = None
    mask: Mask = NO_MASK


class Executor(Protocol):
    """A place where jobs run."""

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of environment that it can run a job in."""

    @property
    def runs_several_tasks(self) -> bool:
        """Whether it can run a job as several processes, on one node or many."""

    @property
    def pins_cpus(self) -> bool:
        """Whether it can keep a job on the processors that it is told."""

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


@runtime_checkable
class BatchExecutor(Executor, Protocol):
    """An executor with a queue of its own, which decides what runs when."""

    def run_many(
        self, tasks: Sequence[Task], on_end: Callable[[Task, Outcome], None], stop: threading.Event | None = None
    ) -> None:
        """Runs many jobs; the calls of `on_end` come in the order of their ends.

        Args:
            tasks: what to run.
            on_end: called, by the calling thread, with each task that has ended.
            stop: once set, what has not ended is cancelled.
        """

    def under_way(self, folder: Path) -> bool:
        """Whether a job of this folder is in the queue still, from a night that was interrupted."""
