"""Which outcome does the end of a Slurm job stand for?

In: what Slurm says, and what the batch script left. Out: an outcome.

Source: the job state codes of squeue(1) and sacct(1) of Slurm 22.05.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from pathlib import Path

from nightjar_ci.executors.ending import judge_end, quote_log, seen_from_shell
from nightjar_ci.executors.process import STDERR, STDOUT, Ended, read_tail
from nightjar_ci.executors.slurm.cluster import JobState
from nightjar_ci.executors.slurm.script import EXIT_FILE
from nightjar_ci.formats.job import Job
from nightjar_ci.formats.outcome import Outcome, make_outcome
from nightjar_ci.untrusted.files import append_untrusted, read_untrusted

_OUT_OF_TIME = frozenset(("TIMEOUT", "DEADLINE"))
_OUT_OF_MEMORY = re.compile(r"slurmstepd.*oom[-_]kill")  # what a step says, whose job then counts as failed
_HINT = "`scontrol show job` and the log of slurmctld say why"
_HINTS = {
    "OUT_OF_MEMORY": "raise resources.memory in the matrix, or look at what the job needs",
    "CANCELLED": "somebody cancelled it: `sacct --format=JobID,State` says who",
    "NODE_FAIL": "the nodes it ran on failed each time: `sinfo --list-reasons`",
    "PREEMPTED": "jobs of more weight take its place: ask for another partition or QOS in NIGHTJAR_SLURM_OPTIONS",
    "TIMEOUT": "Slurm's limit came before timeout_s: is it that of a partition or QOS? See NIGHTJAR_SLURM_OPTIONS",
    "DEADLINE": "Slurm's deadline came before timeout_s: see NIGHTJAR_SLURM_OPTIONS",
}


def read_exit(folder: Path) -> tuple[int, float] | None:
    """Exit code and wall time, as the script left them; None while it has not."""
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
    moves: Sequence[str] = (),
) -> Outcome:
    """The outcome of a job that has ended.

    Args:
        job: what ran.
        state: what Slurm says of its end.
        folder: where its logs are, and what its script left.
        cancelled: whether it was cancelled for running longer than its `timeout_s`.
        command: the argument list as it was run.
        started_at: when it was handed to Slurm, ISO 8601.
        slurm_id: its number there.
        submissions: how often it was submitted.
        moves: why it was taken away from its nodes, each time.
    """
    for log in (STDOUT, STDERR):  # a job that never ran has none
        with contextlib.suppress(OSError):
            append_untrusted(folder, log, "")
    left = read_exit(folder)
    duration_s = left[1] if left is not None else state.elapsed_s
    in_time = left is not None and left[1] <= job.timeout_s  # it ended by itself, just before it was cancelled
    timed_out = cancelled and not in_time
    name = state.state
    if name == "FAILED" and _OUT_OF_MEMORY.search(read_tail(folder / STDERR)):
        name = "OUT_OF_MEMORY"
    if timed_out or name in ("COMPLETED", "FAILED") or (cancelled and in_time):
        ended = Ended(
            exit_code=None if timed_out else left[0] if left is not None else state.exit_code,
            signal=None,
            timed_out=timed_out,
            duration_s=duration_s,
            peak_rss_bytes=None,
        )
        return judge_end(job, seen_from_shell(ended), command, folder, started_at)
    moved = "".join(f", moved as {why}" for why in moves)
    by = f" {state.reason}" if name == "CANCELLED" and state.reason.startswith("by ") else ""
    return make_outcome(
        job,
        state="timeout" if name in _OUT_OF_TIME else "killed",
        started_at=started_at,
        command=command,
        signal="SIGKILL" if name == "OUT_OF_MEMORY" else None,
        duration_s=duration_s,
        message=f"{job.id}: Slurm job {slurm_id} ended with {name}{by} on {state.nodes or 'no node'} after "
        f"{duration_s:.1f} s, submitted {submissions or 1} times{moved}, expected COMPLETED. "
        f"{quote_log(folder / STDERR)}Hint: {_HINTS.get(name, _HINT)}",
    )
