"""Which state and which message does the end of a process stand for? Pure; the same for every executor."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from nightjar_ci.executors.process import STDERR, Ended, read_tail, signal_name
from nightjar_ci.formats.job import Job
from nightjar_ci.formats.outcome import Outcome, State, make_outcome

_NO_SPACE = ("No space left on device", "Disk quota exceeded", "File too large")
_REASON = re.compile(r"^(?:error: (?=\S)|(?=[\w.]+(?:Error|Exception): ))(.+)$", re.MULTILINE)
_NO_MEMORY = ("MemoryError", "std::bad_alloc", "RESOURCE_EXHAUSTED")


def judge_end(job: Job, ended: Ended, command: tuple[str, ...], folder: Path, started_at: str) -> Outcome:
    """The outcome of a job whose process has ended.

    Args:
        job: what ran.
        ended: how its process ended.
        command: the argument list as it was run.
        folder: where its logs are.
        started_at: when it started, ISO 8601.
    """
    state = _state(ended)
    return make_outcome(
        job,
        state=state,
        started_at=started_at,
        command=command,
        exit_code=ended.exit_code,
        signal=ended.signal,
        duration_s=ended.duration_s,
        peak_rss_bytes=ended.peak_rss_bytes,
        message=None if state == "completed" else _message(job, state, ended, folder),
    )


def not_started(
    job: Job, problem: str, hint: str | None, started_at: str, command: tuple[str, ...] | None = None
) -> Outcome:
    """The outcome of a job that could not be started."""
    message = f"{job.id}: not started: {problem}" + (f" Hint: {hint}" if hint else "")
    return make_outcome(job, state="not_started", started_at=started_at, command=command, message=message)


def seen_from_shell(ended: Ended) -> Ended:
    """The end of a job, told from that of docker or srun: 128 + n means that signal n ended the job.

    Its peak memory is that of the command, and so unknown.
    """
    if ended.exit_code is not None and 128 < ended.exit_code < 128 + 65:
        return replace(ended, exit_code=None, signal=signal_name(ended.exit_code - 128), peak_rss_bytes=None)
    return replace(ended, peak_rss_bytes=None)


def find_reason(log: str) -> str | None:
    """The last line of a log that says what went wrong, as Nightjar's commands and Python's tracebacks do.

    >>> find_reason("Traceback ...\\nValueError: too big.\\nerror: a 1 with b 2: ValueError: too big.\\nHint: none\\n")
    'a 1 with b 2: ValueError: too big'
    """
    said = _REASON.findall(log)
    return said[-1].rstrip(".") if said else None


def quote_log(path: Path) -> str:
    """The end of a log as a part of a message."""
    tail = read_tail(path)
    return f"The last lines of {path}:\n{tail}\n" if tail.strip() else f"{path} is empty. "


def _state(ended: Ended) -> State:
    if ended.timed_out:
        return "timeout"
    if ended.signal is not None:
        return "killed"
    return "completed" if ended.exit_code == 0 else "failed"


def _message(job: Job, state: State, ended: Ended, folder: Path) -> str:
    what = {
        "timeout": f"still running at timeout_s = {job.timeout_s:g}, ended with all that it had started.",
        "killed": f"killed by {ended.signal} after {ended.duration_s:.1f} s, expected exit code 0.",
    }.get(state, f"exit code {ended.exit_code} after {ended.duration_s:.1f} s, expected 0")
    log = folder / STDERR
    tail = read_tail(log)
    if state == "failed":
        what += f": {reason}." if (reason := find_reason(tail)) else "."
    return f"{job.id}: {what} {quote_log(log)}Hint: {_hint(job, state, ended, tail)}"


def _hint(job: Job, state: State, ended: Ended, tail: str) -> str:
    if any(sign in tail for sign in _NO_SPACE):
        return "the disk is full, or a quota or file-size limit was met: make room, then run again"
    if state == "timeout":
        return "raise timeout_s in the matrix, or look where it hangs: py-spy dump, or faulthandler in the program"
    if ended.signal == "SIGKILL" or any(sign in tail for sign in _NO_MEMORY):
        peak = f"; its peak was {ended.peak_rss_bytes / 1e9:.2f} GB" if ended.peak_rss_bytes else ""
        return f"out of memory? `dmesg` says whether the kernel killed it{peak}"
    if ended.signal is not None:
        return "a crash in native code: PYTHONFAULTHANDLER=1 in the job's env prints the Python stack"
    if ended.exit_code == 127:
        return "the shell did not find a command: is it installed in the job's environment?"
    return f"`nightjar-ci run MATRIX --jobs {job.id}` runs this job alone"
