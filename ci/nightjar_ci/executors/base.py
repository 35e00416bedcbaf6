"""The executor protocols: run one job in a prepared environment and return its outcome.

An executor with its own queue also takes many jobs at once (`BatchExecutor`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from nightjar_ci.environments.prepare import PreparedEnvironment
from nightjar_ci.executors.process import ended_by
from nightjar_ci.formats.job import Job
from nightjar_ci.formats.night_folder import now
from nightjar_ci.formats.outcome import Outcome, make_outcome
from nightjar_ci.untrusted.masking import NO_MASK, Mask

OnLine = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Task:
    """A job, its environment, its output folder, a progress callback and the mask of its secrets."""

    job: Job
    environment: PreparedEnvironment
    folder: Path
    on_line: OnLine | None = None
    mask: Mask = NO_MASK


class Executor(Protocol):
    """Runs jobs, one at a time."""

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of environment that it supports."""

    @property
    def runs_several_tasks(self) -> bool:
        """Whether it can run a job as several processes, on one or more nodes."""

    @property
    def pins_cpus(self) -> bool:
        """Whether it can pin a job to given CPUs."""

    def run(self, job: Job, environment: PreparedEnvironment, folder: Path, on_line: OnLine | None = None) -> Outcome:
        """Runs a job to completion; a failed job is an outcome, not an exception.

        Args:
            environment: its kind is one of `kinds`.
            folder: an existing empty folder: the job's `{out}`; `stdout.log` and `stderr.log` are written there.
            on_line: called with the latest line of output, for progress.

        Returns:
            The outcome, derived from how the process ended; the caller reads the result.
        """


@runtime_checkable
class BatchExecutor(Executor, Protocol):
    """An executor with its own queue, which schedules the jobs."""

    def run_many(
        self, tasks: Sequence[Task], on_end: Callable[[Task, Outcome], None], stop: threading.Event | None = None
    ) -> None:
        """Runs many jobs and calls `on_end` for each in order of completion.

        Args:
            on_end: called in the calling thread with each task that has ended.
            stop: once set, unfinished jobs are cancelled.
        """

    def under_way(self, folder: Path) -> bool:
        """Whether the queue still holds a job of this folder, left by an interrupted night."""


def run_alone(executor: BatchExecutor, task: Task) -> Outcome:
    """Runs one job through a queue."""
    outcomes: list[Outcome] = []
    stop = threading.Event()
    with ended_by(stop.set):
        executor.run_many([task], lambda _, outcome: outcomes.append(outcome), stop)
    if outcomes:
        return outcomes[0]
    message = f"{task.job.id}: cancelled because nightjar-ci was interrupted."
    return make_outcome(task.job, state="killed", started_at=now(), message=message)
