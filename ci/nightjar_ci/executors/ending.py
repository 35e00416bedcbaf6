"""Outcome of a job from the end of its process: state, message and hint. The same for every executor."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from nightjar_ci.executors.process import STDERR, Ended, read_tail, signal_name
from nightjar_ci.formats.job import Job
from nightjar_ci.formats.outcome import Outcome, State, make_outcome

NO_SPACE = ("No space left on device", "Disk quota exceeded", "File too large")
_READ_ONLY = "Read-only file system"
_MISSING = re.compile(r"No such file or directory: '(/[^'\n]+)'|(/[^\s:'\"]+)'?: No such file or directory")
_NO_NETWORK = ("Network is unreachable", "Temporary failure in name resolution", "Name or service not known")
_REASON = re.compile(r"^(?:E +)?(?:error: (?=\S)|(?=[\w.]+(?:Error|Exception): ))(.+)$", re.MULTILINE)
NO_MEMORY = ("MemoryError", "std::bad_alloc", "Cannot allocate memory", "RESOURCE_EXHAUSTED")


def judge_end(job: Job, ended: Ended, command: tuple[str, ...], folder: Path, started_at: str) -> Outcome:
    """The outcome of a job whose process has ended.

    Args:
        command: the argument list as it was run.
        started_at: when it started, ISO 8601.
    """
    state = _state(ended)
    message = None
    if state != "completed":
        message = _message(job, state, ended, folder)
    return make_outcome(
        job,
        state=state,
        started_at=started_at,
        command=command,
        exit_code=ended.exit_code,
        signal=ended.signal,
        duration_s=ended.duration_s,
        peak_rss_bytes=ended.peak_rss_bytes,
        message=message,
    )


def not_started(
    job: Job, problem: str, hint: str | None, started_at: str, command: tuple[str, ...] | None = None
) -> Outcome:
    message = f"{job.id}: not started: {problem}"
    if hint:
        message += f" Hint: {hint}"
    return make_outcome(job, state="not_started", started_at=started_at, command=command, message=message)


def decode_shell_exit(ended: Ended) -> Ended:
    """The end of a job that docker or srun ran: exit code 128 + n means that signal n ended the job.

    The peak memory is dropped: it belongs to the docker or srun command, not to the job.
    """
    if ended.exit_code is not None and 128 < ended.exit_code < 128 + 65:
        return replace(ended, exit_code=None, signal=signal_name(ended.exit_code - 128), peak_rss_bytes=None)
    return replace(ended, peak_rss_bytes=None)


def find_reason(log: str) -> str | None:
    """The last error line of a log, as Nightjar's commands and Python tracebacks print it.

    >>> find_reason("Traceback ...\\nValueError: too big.\\nerror: a 1 with b 2: ValueError: too big.\\nHint: none\\n")
    'a 1 with b 2: ValueError: too big'
    """
    reasons = _REASON.findall(log)
    if not reasons:
        return None
    reason: str = reasons[-1]
    return reason.rstrip(".")


def quote_log(path: Path) -> str:
    tail = read_tail(path)
    if not tail.strip():
        return f"{path} is empty. "
    return f"The last lines of {path}:\n{tail}\n"


def _state(ended: Ended) -> State:
    if ended.timed_out:
        return "timeout"
    if ended.signal is not None:
        return "killed"
    if ended.exit_code == 0:
        return "completed"
    return "failed"


def _message(job: Job, state: State, ended: Ended, folder: Path) -> str:
    log = folder / STDERR
    tail = read_tail(log)
    if state == "timeout":
        problem = f"still running at timeout_s = {job.timeout_s:g}; killed with all its child processes"
    elif state == "killed":
        problem = f"killed by {ended.signal} after {ended.duration_s:.1f} s, expected exit code 0"
    else:
        problem = f"exit code {ended.exit_code} after {ended.duration_s:.1f} s, expected 0"
        if reason := find_reason(tail):
            problem += f": {reason}"
    return f"{job.id}: {problem}. {quote_log(log)}Hint: {_hint(job, state, ended, tail)}"


def explain_confinement(tail: str) -> str | None:
    """The lack in the sandbox that the end of a local job's stderr speaks of; None if it speaks of none."""
    if _READ_ONLY in tail:
        return (
            "a job in the sandbox writes only to its output folder, the working directory, /tmp and new entries of "
            "~/.cache: name further folders in NIGHTJAR_SANDBOX_WRITES"
        )
    named = [first or second for first, second in _MISSING.findall(tail)]
    hidden = next((path for path in reversed(named) if Path(path).exists()), None)  # this machine has it
    if hidden is not None:
        return f"the sandbox shows a job no {hidden}: NIGHTJAR_SANDBOX_READS={hidden} does"
    if any(sign in tail for sign in _NO_NETWORK):
        return "a job in the sandbox has no network: NIGHTJAR_SANDBOX=network gives it one"
    return None


def _hint(job: Job, state: State, ended: Ended, tail: str) -> str:
    is_full = any(sign in tail for sign in NO_SPACE)
    if ended.signal == "SIGBUS" or (is_full and "/dev/shm" in tail):
        return "is /dev/shm full? Make room there; in a container, `shm` in the job's `resources` makes it larger"
    if is_full:
        return "the disk is full, or a quota or file-size limit was reached: free some space and run again"
    if job.executor == "local" and (confined := explain_confinement(tail)) is not None:
        return confined
    if state == "timeout" and job.kind == "test":
        return (
            "raise timeout_s in the matrix, or give pytest a limit below it, after which what ran counts: "
            "tests = { limit_s = ... }; a test that hangs: `py-spy dump`, or `--timeout` of pytest-timeout"
        )
    if state == "timeout":
        return "raise timeout_s in the matrix, or find where it hangs: `py-spy dump`, or faulthandler in the program"
    if "RESOURCE_EXHAUSTED" in tail:
        return "XLA ran out of the device's memory: does another process hold it (nvidia-smi)? Else a smaller batch"
    if ended.signal == "SIGKILL" or any(sign in tail for sign in NO_MEMORY):
        hint = "out of memory? `dmesg` shows whether the kernel killed it"
        if ended.peak_rss_bytes:
            hint += f"; its peak was {ended.peak_rss_bytes / 1e9:.2f} GB"
        return hint
    if ended.signal is not None:
        return "a crash in native code: set PYTHONFAULTHANDLER=1 in the job's env to print the Python stack"
    if ended.exit_code == 127:
        return "a command was not found: check that it is installed in the job's environment"
    return f"`nightjar-ci run MATRIX --jobs {job.id}` runs this job alone"
