"""Executor for Slurm clusters: submits jobs as batches, polls them with back-off and restarts them on other nodes.

Jobs with equal requirements become one array. After a node failure or a preemption a job returns to the queue by
Slurm's own `--requeue` or, on clusters without it, by a new submission that excludes the failed nodes. The job keeps
its folder, and so its checkpoint. A night that is resumed after `nightjar-ci` was killed watches the running jobs
instead of starting them again.

submitit is not used: it runs pickled Python functions in one interpreter and reads `sacct` only; a job here is a
command line in its own environment or image, on clusters with and without slurmdbd.

Source: the job state codes of squeue(1) and sacct(1) of Slurm 22.05.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nightjar_ci.environments.prepare import PreparedEnvironment
from nightjar_ci.errors import ExecutorError, NightjarError
from nightjar_ci.executors.base import OnLine, Task, run_alone
from nightjar_ci.executors.ending import decode_shell_exit, judge_end, not_started, quote_log
from nightjar_ci.executors.process import STDERR, STDOUT, Ended, read_tail
from nightjar_ci.executors.slurm.cluster import Cluster, JobState
from nightjar_ci.executors.slurm.script import EXIT_FILE, render_batch
from nightjar_ci.executors.slurm.slurm_job import STATE_FILE, SlurmJob, append_log_line, prepare, save_state
from nightjar_ci.formats.job import Job
from nightjar_ci.formats.outcome import Outcome, make_outcome
from nightjar_ci.untrusted.files import append_untrusted, read_untrusted
from nightjar_ci.untrusted.inheritance import inherit

_NODE_FAILED = frozenset(("NODE_FAIL", "BOOT_FAIL"))
LOST: Final = _NODE_FAILED | {"PREEMPTED"}  # caused by the cluster: worth another attempt
_SHORTEST_S, _LONGEST_S = 0.25, 15.0  # between two polls: short after a change, growing without one
_LOG_POLL_S = 0.5  # reading the logs costs the cluster nothing
_EXIT_FILE_S = 20.0  # a shared file system may show a node's file late
_OUT_OF_TIME = frozenset(("TIMEOUT", "DEADLINE"))
_OUT_OF_MEMORY = re.compile(r"slurmstepd.*oom[-_]kill")  # message of a step whose job Slurm then reports as failed
_HINT = "see `scontrol show job` and the log of slurmctld for the reason"
_HINTS = {
    "OUT_OF_MEMORY": "raise resources.memory in the matrix, or reduce the job's memory use",
    "CANCELLED": "a user cancelled it: `sacct --format=JobID,State` shows who",
    "NODE_FAIL": "its nodes failed on every attempt: `sinfo --list-reasons` shows why",
    "PREEMPTED": "jobs of higher priority preempt it: choose another partition or QOS in NIGHTJAR_SLURM_OPTIONS",
    "TIMEOUT": "Slurm's own limit came before timeout_s: `scontrol show job` has it as TimeLimit; partition, QOS and "
    "NIGHTJAR_SLURM_OPTIONS may lower it",
    "DEADLINE": "Slurm's deadline came before timeout_s: check NIGHTJAR_SLURM_OPTIONS",
}


@dataclass(frozen=True, slots=True)
class SlurmExecutor:
    """Runs jobs through sbatch and srun, on one or more nodes."""

    kinds: frozenset[str] = frozenset({"current", "uv", "project", "image"})
    runs_several_tasks: bool = True
    pins_cpus: bool = False

    def run(self, job: Job, environment: PreparedEnvironment, folder: Path, on_line: OnLine | None = None) -> Outcome:
        return run_alone(self, Task(job, environment, folder, on_line))

    def under_way(self, folder: Path) -> bool:
        return (folder / STATE_FILE).is_file() and not (folder / "outcome.json").exists()

    def run_many(
        self, tasks: Sequence[Task], on_end: Callable[[Task, Outcome], None], stop: threading.Event | None = None
    ) -> None:
        """Runs jobs in parallel, as the cluster has room.

        Args:
            tasks: a task whose folder has a submitted job is watched, not resubmitted.
            stop: once set, unfinished jobs are cancelled without an outcome.
        """
        _Watch(Cluster(), on_end, stop or threading.Event()).run(tasks)


_NO_LOG = 128 + 53  # Slurm's ExitCode=0:53: slurmd could not open the log of the job


class _Watch:
    """The jobs of one call of `run_many`."""

    def __init__(self, cluster: Cluster, on_end: Callable[[Task, Outcome], None], stop: threading.Event) -> None:
        self._cluster, self._on_end, self._stop = cluster, on_end, stop
        self._open: list[SlurmJob] = []

    def run(self, tasks: Sequence[Task]) -> None:
        self._open = [prepare(task) for task in tasks]
        try:
            self._submit([job for job in self._open if not job.slurm_id])
            pause, last = _SHORTEST_S, time.monotonic()
            while self._open and not self._stop.is_set():
                self._stop.wait(min(pause, _LOG_POLL_S))
                self._poll_logs()
                if time.monotonic() - last < pause:
                    continue
                changed = self._poll()
                last = time.monotonic()
                pause = _SHORTEST_S if changed else min(pause * 1.3, _LONGEST_S, self._until_timeout())
        except ExecutorError as error:
            self._cancel(self._open)  # nobody would watch them any more
            for job in list(self._open):
                lost = make_outcome(
                    job.task.job,
                    state="killed" if job.slurm_id else "not_started",
                    started_at=job.started_at,
                    command=job.cell.command,
                    message=f"{job.task.job.id}: {error.message}; Slurm job: {job.slurm_id or 'not submitted'}. "
                    f"Hint: {error.hint}",
                )
                self._end(job, lost)
        finally:  # interrupted, or an error ended the batch
            self._cancel(self._open)

    def _submit(self, jobs: Sequence[SlurmJob]) -> None:
        groups: dict[object, list[SlurmJob]] = {}
        for job in jobs:
            try:
                job.pin_image()
            except NightjarError as error:
                self._end(job, not_started(job.task.job, error.message, error.hint, job.started_at, job.cell.command))
                continue
            key = (job.spec, tuple(sorted(job.task.environment.entered({}).items())), tuple(sorted(job.excluded)))
            groups.setdefault(repr(key), []).append(job)
        for group in groups.values():
            size = self._largest_array() if len(group) > 1 else 1
            for start in range(0, len(group), size):
                self._submit_batch(group[start : start + size])

    def _largest_array(self) -> int:
        limit = self._cluster.config("MaxArraySize")
        if not limit.isdigit():
            return 1000
        return max(1, min(1000, int(limit) - 1))

    def _submit_batch(self, group: Sequence[SlurmJob]) -> None:
        first = group[0]
        name = f"nightjar-{first.task.job.id}" if len(group) == 1 else f"nightjar-{len(group)}-jobs"
        script = render_batch(name, first.spec, [job.cell for job in group], sorted(first.excluded))
        try:
            environ = first.task.environment.entered(inherit(os.environ, first.spec.passed))
            slurm_id = self._cluster.submit(script, environ)
        except ExecutorError as error:
            if first.excluded:  # too few nodes are left without them: allow them again
                for job in group:
                    job.excluded.clear()
                self._submit_batch(group)
                return
            for job in group:
                self._end(job, not_started(job.task.job, error.message, error.hint, job.started_at, job.cell.command))
            return
        for number, job in enumerate(group):
            job.slurm_id = slurm_id if len(group) == 1 else f"{slurm_id}_{number}"
            job.submissions += 1
            job.state, job.unseen_since, job.ended_since = None, None, None
            save_state(job)

    def _poll(self) -> bool:
        """Reads the states of the jobs and acts on them; returns whether any has changed."""
        before = [(job.slurm_id, job.state and job.state.state) for job in self._open]
        states = self._cluster.states([job.slurm_id for job in self._open])
        lost_jobs: list[SlurmJob] = []
        for job in list(self._open):
            state = states.get(job.slurm_id)
            if state is None:
                state = self._state_without_slurm(job)
            if state is None:
                continue
            job.unseen_since, job.state = None, state
            if state.ended:
                if state.state in LOST and job.may_restart:
                    lost_jobs.append(job)
                elif (outcome := _judge(job, state)) is not None:
                    self._end(job, outcome)
            elif state.never_starts:
                self._cluster.cancel([job.slurm_id])
                problem = f"Slurm can never start it: {state.reason}."
                hint = "request less in resources, or another partition in NIGHTJAR_SLURM_OPTIONS"
                self._end(job, not_started(job.task.job, problem, hint, job.started_at, job.cell.command))
            elif self._is_late(job, state):
                job.timed_out = True
                self._cluster.cancel([job.slurm_id])
        for job in lost_jobs:
            assert job.state is not None
            if job.state.nodes and job.state.state in _NODE_FAILED:
                job.excluded.add(job.state.nodes)
            line = f"nightjar: {job.slurm_id} ended with {job.state.state} on {job.state.nodes}: resubmitting"
            append_log_line(job, line)
        self._submit(lost_jobs)
        return before != [(job.slurm_id, job.state and job.state.state) for job in self._open]

    def _is_late(self, job: SlurmJob, state: JobState) -> bool:
        """Whether a job exceeds its timeout; not if accounts show it as running only because they lag."""
        late = state.state == "RUNNING" and state.elapsed_s > job.task.job.timeout_s
        return late and not job.timed_out and read_exit(job.task.folder) is None

    def _state_without_slurm(self, job: SlurmJob) -> JobState | None:
        """The state of a job that Slurm does not know, from its exit file; None while the file may still appear."""
        if (code := read_exit(job.task.folder)) is not None:
            return JobState(state="FAILED" if code[0] else "COMPLETED", exit_code=code[0])
        job.unseen_since = job.unseen_since or time.monotonic()
        if time.monotonic() - job.unseen_since <= _EXIT_FILE_S:
            return None
        return JobState(state="NODE_FAIL")

    def _until_timeout(self) -> float:
        """Seconds until the next job reaches its timeout, at least the shortest pause."""
        remaining_s = [
            job.task.job.timeout_s - job.state.elapsed_s
            for job in self._open
            if job.state is not None and job.state.state == "RUNNING"
        ]
        return max(_SHORTEST_S, min(remaining_s, default=_LONGEST_S))

    def _poll_logs(self) -> None:
        for job in self._open:
            if job.log_tail is not None:
                job.log_tail.poll()

    def _end(self, job: SlurmJob, outcome: Outcome) -> None:
        self._open.remove(job)
        self._on_end(job.task, outcome)

    def _cancel(self, jobs: Sequence[SlurmJob]) -> None:
        submitted = [job for job in jobs if job.slurm_id]
        if submitted:
            self._cluster.cancel([job.slurm_id for job in submitted])
            for job in submitted:
                (job.task.folder / STATE_FILE).unlink(missing_ok=True)


def _judge(job: SlurmJob, state: JobState) -> Outcome | None:
    """The outcome of a job that has ended; None while its exit file may still appear."""
    if state.state == "COMPLETED" and not job.timed_out and read_exit(job.task.folder) is None:
        job.ended_since = job.ended_since or time.monotonic()
        if time.monotonic() - job.ended_since < _EXIT_FILE_S:
            return None
    return judge_slurm_end(
        job.task.job,
        state,
        job.task.folder,
        cancelled=job.timed_out,
        command=job.cell.command,
        started_at=job.started_at,
        slurm_id=job.slurm_id,
        submissions=job.submissions,
    )


def read_exit(folder: Path) -> tuple[int, float] | None:
    """Exit code and wall time in seconds, as the script wrote them; None if it has not written them."""
    try:
        code, started, ended = read_untrusted(folder, EXIT_FILE, most_bytes=1000).split()
        return int(code), float(ended.replace(b",", b".")) - float(started.replace(b",", b"."))  # as the locale has it
    except (OSError, ValueError):
        return None


def judge_slurm_end(
    job: Job,
    state: JobState,
    folder: Path,
    *,
    cancelled: bool,
    command: tuple[str, ...],
    started_at: str,
    slurm_id: str,
    submissions: int,
) -> Outcome:
    """The outcome of a job that has ended.

    Args:
        folder: the job's folder, with its logs and the exit file.
        cancelled: whether we cancelled it because it ran longer than its `timeout_s`.
    """
    for log in (STDOUT, STDERR):  # a job that never ran has none
        with contextlib.suppress(OSError):
            append_untrusted(folder, log, "")
    exit_code, duration_s, in_time = state.exit_code, state.elapsed_s, False
    if (exit_file := read_exit(folder)) is not None:
        exit_code, duration_s = exit_file
        in_time = duration_s <= job.timeout_s  # it ended by itself, just before it was cancelled
    elif state.exit_code == _NO_LOG:
        hint = "is it on a file system that all nodes share?"
        return not_started(job, f"{state.nodes or 'the node'} cannot write {folder}.", hint, started_at, command)
    timed_out = cancelled and not in_time
    name = state.state
    if name == "FAILED" and _OUT_OF_MEMORY.search(read_tail(folder / STDERR)):
        name = "OUT_OF_MEMORY"
    if timed_out or name in ("COMPLETED", "FAILED") or (cancelled and in_time):
        ended = Ended(exit_code=None if timed_out else exit_code, duration_s=duration_s, timed_out=timed_out)
        return judge_end(job, decode_shell_exit(ended), command, folder, started_at)
    cancelled_by = ""
    if name == "CANCELLED" and state.reason.startswith("by "):
        cancelled_by = f" {state.reason}"
    return make_outcome(
        job,
        state="timeout" if name in _OUT_OF_TIME else "killed",
        started_at=started_at,
        command=command,
        signal="SIGKILL" if name == "OUT_OF_MEMORY" else None,
        duration_s=duration_s,
        message=f"{job.id}: Slurm job {slurm_id} ended with {name}{cancelled_by} on {state.nodes or 'no node'} after "
        f"{duration_s:.1f} s, submitted {submissions or 1} times, expected COMPLETED. "
        f"{quote_log(folder / STDERR)}Hint: {_HINTS.get(name, _HINT)}",
    )
