"""Executor for this machine: each job is a process group, with its environment's commands first on PATH.

If bubblewrap works, the job runs in a sandbox (`sandbox`).
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from nightjar_ci.environments.prepare import PreparedEnvironment
from nightjar_ci.executors.base import OnLine
from nightjar_ci.executors.ending import decode_shell_exit, judge_end, not_started
from nightjar_ci.executors.process import STDERR, STDOUT, Ended, UnwritableLogError, run_process
from nightjar_ci.formats.job import Job
from nightjar_ci.formats.night_folder import find_programs, now
from nightjar_ci.formats.outcome import Outcome, make_outcome
from nightjar_ci.sandbox.confine import check_program, open_sandbox
from nightjar_ci.settings import read_settings
from nightjar_ci.untrusted.inheritance import inherit
from nightjar_ci.untrusted.masking import NO_MASK, Mask, make_mask


@dataclass(frozen=True, slots=True)
class LocalExecutor:
    """Runs jobs on this machine, in the environment's folder or the caller's working directory."""

    kinds: frozenset[str] = frozenset({"current", "uv", "project"})
    runs_several_tasks: bool = False
    pins_cpus: bool = True

    def run(self, job: Job, environment: PreparedEnvironment, folder: Path, on_line: OnLine | None = None) -> Outcome:
        started_at = now()
        command, variables = job.rendered(folder.absolute())
        environ = {**environment.entered(inherit(os.environ, job.inherited)), **variables}
        if job.kind == "train" and (programs := find_programs(folder.absolute())) is not None:
            environ["NIGHTJAR_PROGRAMS"] = str(programs)
        cwd = (environment.folder or Path.cwd()).absolute()
        guard = DiskGuard(folder)
        try:
            ended = run_confined(
                command,
                environ,
                folder,
                job.timeout_s,
                on_line,
                cwd=cwd,
                named=[environ[name] for name in job.env if name in environ],
                pinned_cpus=job.resources.pinned_cpus,
                on_poll=guard.poll,
                mask=make_mask(job.secrets, os.environ),
            )
            if ended.exit_code != 0:
                guard.check()
        except UnwritableLogError:
            raise
        except FilledDiskError as error:
            guard.free()
            message = f"{job.id}: the disk is full: {error}. Hint: make room, or let it write less"
            return make_outcome(job, state="failed", started_at=started_at, command=command, message=message)
        except FileNotFoundError:
            problem = f"no command {command[0]!r} in the environment {environment.name!r} or on PATH."
            bin_dir = environment.bin_dir
            if environment.interpreter is not None:
                bin_dir = environment.interpreter.bin_dir
            hint = f"install it in {bin_dir}, activate the environment that has it, or check 'command' in the matrix"
            return not_started(job, problem, hint, started_at, command)
        except (OSError, ValueError) as error:  # not executable, a NUL in an argument, or no such processor
            cpu_hint = None
            if pinned := job.resources.pinned_cpus:
                cpu_hint = f"check that this machine has the CPUs of resources.pinned_cpus, {pinned}"
            return not_started(job, f"cannot run {command[0]!r}: {error}.", cpu_hint, started_at, command)
        return judge_end(job, ended, command, folder, started_at)


def run_confined(
    command: Sequence[str],
    environ: dict[str, str],
    folder: Path,
    timeout_s: float,
    on_line: OnLine | None = None,
    *,
    cwd: Path,
    named: Iterable[str] = (),
    pinned_cpus: str | None = None,
    on_poll: Callable[[], None] | None = None,
    mask: Mask = NO_MASK,
) -> Ended:
    """Runs foreign code as `run_process` does, confined if this machine has a sandbox.

    Args:
        named: words besides the command that may name paths which it needs.
    """
    sandbox = open_sandbox(read_settings(), on_line)
    with ExitStack() as stack:
        if sandbox is not None:
            check_program(command[0], environ, cwd)
            confined = sandbox.confine(command, environ, folder.absolute(), cwd, named)
            command, environ = stack.enter_context(confined)
        ended = run_process(
            command, environ, folder, timeout_s, on_line, cwd=cwd, pinned_cpus=pinned_cpus, on_poll=on_poll, mask=mask
        )
    if sandbox is None:
        return ended
    return replace(decode_shell_exit(ended), peak_rss_bytes=ended.peak_rss_bytes)


RESERVE_BYTES = 256 << 20  # for results, logs and the store of the other jobs
_RESERVE_SHARE = 0.1  # of the free space when the job starts: a small disk has no 256 MiB to spare
_INTERVAL_S = 0.5


class FilledDiskError(Exception):
    """A job used up the disk; its message says how."""


class DiskGuard:
    """Guards the disk while a job runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.reserve_bytes = min(RESERVE_BYTES, int(_read_free(folder) * _RESERVE_SHARE))
        self._next_s = 0.0

    def poll(self) -> None:
        if time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + _INTERVAL_S
            self.check()

    def check(self) -> None:
        free = _read_free(self.folder)
        if free >= self.reserve_bytes:
            return
        used = sum(_measure_files(self.folder))
        if used > self.reserve_bytes:
            raise FilledDiskError(
                f"it wrote {_render(used)} into its folder, and the disk has {_render(free)} left. "
                "Its files were removed, except its logs"
            )

    def free(self) -> None:
        """Removes the job's files, except its logs."""
        for path in self.folder.iterdir():
            if path.name in (STDOUT, STDERR):
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def _read_free(folder: Path) -> int:
    status = os.statvfs(folder.parent)  # a job may have removed its folder
    return status.f_bavail * status.f_frsize


def _measure_files(folder: Path) -> Iterator[int]:
    """The bytes on disk of each file; vanished ones are left out."""
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                yield Path(parent, name).lstat().st_blocks * 512
            except OSError:
                continue


def _render(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 20):,.1f} MiB"
