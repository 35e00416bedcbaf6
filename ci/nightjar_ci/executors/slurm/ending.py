"""Outcome of a Slurm job that has ended.

In: its state in Slurm, and the files that the batch script wrote. Out: an outcome.

Source: the job state codes of squeue(1) and sacct(1) of Slurm 22.05.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from nightjar_ci.executors.ending import decode_shell_exit, judge_end, quote_log
from nightjar_ci.executors.process import STDERR, STDOUT, Ended, read_tail
from nightjar_ci.executors.slurm.cluster import JobState
from nightjar_ci.executors.slurm.script import EXIT_FILE
from nightjar_ci.formats.job import Job
from nightjar_ci.formats.outcome import Outcome, make_outcome
from nightjar_ci.untrusted.files import append_untrusted, read_untrusted

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


def read_exit(folder: Path) -> tuple[int, float] | None:
    """Exit code and wall time in seconds, as the script wrote them; None if it has not written them."""
    try:
        code, started, ended = read_untrusted(folder, EXIT_FILE, most_bytes=1000).split()
        return int(code), float(ended) - float(started)
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
    timed_out = cancelled and not in_time
    name = state.state
    if name == "FAILED" and _OUT_OF_MEMORY.search(read_tail(folder / STDERR)):
        name = "OUT_OF_MEMORY"
    if timed_out or name in ("COMPLETED", "FAILED") or (cancelled and in_time):
        ended = Ended(
            exit_code=None if timed_out else exit_code,
            signal=None,
            timed_out=timed_out,
            duration_s=duration_s,
            peak_rss_bytes=None,
        )
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
