"""Supervised run of a command until it ends or reaches its timeout; no child process survives it.

In: an argument list, its environment variables, a folder for its logs and a timeout. Out: how it ended. The command
leads its own session under a small supervisor (`supervisor.py`), which kills every descendant that outlives it, also
those that left the session. The supervisor reads a pipe of ours, so it does the same if we are killed. The output goes
through the supervisor into files of limited size, through a mask first if the command has secrets (`log`); it is not
held in memory.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from nightjar_ci.executors import supervisor
from nightjar_ci.untrusted.files import create_untrusted, read_end
from nightjar_ci.untrusted.masking import NO_MASK, Mask

STDOUT, STDERR = "stdout.log", "stderr.log"
KEEP_LINES = "NIGHTJAR_KEEP_LINES"  # variable of a job: a long log keeps the last line with this word before `=` or `:`
GRACE_S = 5.0  # between SIGTERM and SIGKILL: time to flush logs, short compared with any real timeout
_POLL_S = 0.05  # 20 wake-ups a second cost less than 0.1 % of a core
_LONG_S = 60.0
_TAIL_BYTES = 16384
_SUPERVISOR = Path(__file__).with_name("supervisor.py")
_RSS_UNIT = 1 if sys.platform == "darwin" else 1024  # getrusage(2): kilobytes, on macOS bytes


class UnwritableLogError(OSError):
    """This machine refuses the log of a command, which was not started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a command ended.

    Attributes:
        exit_code: None if a signal ended it.
        signal: name of that signal, such as `SIGKILL`, else None.
        timed_out: whether it still ran at its timeout.
        peak_rss_bytes: of the largest process that was waited for; None if it stayed below the size of the
            supervisor, about ten megabytes: the kernel counts a child at that size until it executes the command.
    """

    exit_code: int | None
    duration_s: float
    timed_out: bool = False
    signal: str | None = None
    peak_rss_bytes: int | None = None


def run_process(
    command: Sequence[str],
    environ: Mapping[str, str],
    folder: Path,
    timeout_s: float,
    on_line: Callable[[str], None] | None = None,
    on_end: Callable[[], None] | None = None,
    cwd: Path | None = None,
    outside: Sequence[str] = (),
    pinned_cpus: str | None = None,
    on_poll: Callable[[], None] | None = None,
    mask: Mask = NO_MASK,
) -> Ended:
    """Runs a command until it ends.

    Args:
        command: argument list; the program is looked up on `PATH` of `environ`.
        folder: of `stdout.log` and `stderr.log`; a long log keeps its head and its tail.
        timeout_s: when the job and its descendants get SIGTERM, and `GRACE_S` later SIGKILL.
        on_end: called before the job is signalled at a timeout or an interruption, to end remote parts.
        outside: command that ends remote parts, for when we are killed and cannot call `on_end`.
        pinned_cpus: the CPUs that it may use, such as `0-3,8`; all if None.
        on_poll: called many times a second while it runs.
        mask: masks secrets in both logs as they are written.
    """
    start = time.monotonic()
    supervised = _start(command, environ, folder, cwd, outside, pinned_cpus, mask)
    _running[supervised] = on_end
    timed_out = False
    polls = [on_poll] if on_poll else []
    if on_line is not None:
        polls += [LogTail(folder / name, on_line).poll for name in (STDOUT, STDERR)]
    try:
        if not supervised.wait(start + timeout_s, polls):
            timed_out = True
            _end(supervised, on_end)
    except BaseException:  # we received Ctrl-C or SIGTERM: the job ends with us
        _end(supervised, on_end)
        raise
    finally:
        del _running[supervised]
        report = supervised.close()
    if report[0] == "error":
        raise OSError(int(report[1]), os.strerror(int(report[1])), command[0])
    status, peak, floor = map(int, report[1:])
    code = os.waitstatus_to_exitcode(status)
    exit_code: int | None = code
    signal_text: str | None = None
    if code < 0:
        exit_code, signal_text = None, signal_name(-code)
    return Ended(
        exit_code=exit_code,
        signal=signal_text,
        timed_out=timed_out,
        duration_s=time.monotonic() - start,
        peak_rss_bytes=peak * _RSS_UNIT if peak > floor else None,
    )


class _Supervised:
    """A running supervisor, and the pipes to it and from it."""

    def __init__(self, process: subprocess.Popen[bytes], report: int, logs: Sequence[Log]) -> None:
        self._process, self._report, self._logs = process, report, logs

    def wait(self, deadline: float, polls: Sequence[Callable[[], None]] = ()) -> bool:
        """Waits for the end of the job and polls meanwhile; returns whether it has ended."""
        while (left := deadline - time.monotonic()) > 0:
            if select.select([self._report], [], [], min(left, _POLL_S if polls else _LONG_S))[0]:
                return True
            for poll in polls:
                poll()
        return False

    def ask_to_end(self) -> None:
        """Requests SIGTERM now and SIGKILL after the grace period."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(b"t")

    def end_now(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def close(self) -> list[str]:
        self.end_now()
        with open(self._report, encoding="ascii") as file:  # noqa: PTH123 - a descriptor has no path
            report = file.read().split()
        code = self._process.wait()
        for log in self._logs:
            log.finish()
        killed = -code if code < 0 else signal.SIGKILL  # the supervisor itself was killed, so it wrote no report
        return report or ["end", str(int(killed)), "0", "0"]


def _start(
    command: Sequence[str],
    environ: Mapping[str, str],
    folder: Path,
    cwd: Path | None,
    outside: Sequence[str],
    pinned_cpus: str | None,
    mask: Mask,
) -> _Supervised:
    report, report_to = os.pipe()
    options = [str(report_to), str(GRACE_S), pinned_cpus or "", str(len(outside)), *outside]
    try:
        logs = [_open_log(folder, name, mask, environ.get(KEEP_LINES, "")) for name in (STDOUT, STDERR)]
        with logs[0].file as stdout, logs[1].file as stderr:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_SUPERVISOR), *options, *command],
                env=environ,
                stdin=subprocess.PIPE,
                stdout=stdout,
                stderr=stderr,
                bufsize=0,
                pass_fds=(report_to,),
                start_new_session=True,
                cwd=cwd,
            )
    except BaseException:
        os.close(report)
        raise
    finally:
        os.close(report_to)
    return _Supervised(process, report, logs)


def _open_log(folder: Path, name: str, mask: Mask, keep: str) -> Log:
    try:
        return Log(folder, name, mask, keep)
    except OSError as error:
        raise UnwritableLogError(error.errno, error.strerror, str(folder / name)) from None


def _end(supervised: _Supervised, on_end: Callable[[], None] | None) -> None:
    if on_end is not None:
        on_end()
    supervised.ask_to_end()
    with contextlib.suppress(KeyboardInterrupt, SystemExit):  # interrupted a second time: do not wait
        supervised.wait(time.monotonic() + GRACE_S + 1)


_running: dict[_Supervised, Callable[[], None] | None] = {}  # running job -> function that ends its remote parts


_elsewhere: set[Callable[[], None]] = set()  # ends jobs that are not our processes


@contextlib.contextmanager
def ended_by(end: Callable[[], None]) -> Iterator[None]:
    """Makes `end_running` call `end`, too, while the context is open."""
    _elsewhere.add(end)
    try:
        yield
    finally:
        _elsewhere.discard(end)


def end_running() -> None:
    """Ends every command that another thread of this process runs; only the main thread gets Ctrl-C and SIGTERM."""
    for supervised, on_end in list(_running.items()):
        if on_end is not None:
            on_end()
        supervised.end_now()
    for end in list(_elsewhere):
        end()


def read_tail(path: Path, lines: int = 20) -> str:
    """The last lines of a log in a job's folder: empty if it does not exist, or why it cannot be read."""
    try:
        text = read_end(path.parent, path.name, _TAIL_BYTES).decode("utf-8", errors="replace")
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"cannot read {path.name}: {error.strerror}."
    return "\n".join(text.splitlines()[-lines:])


class LogTail:
    """Reports the last line of a log whenever the log has grown; a progress bar's `\\r` ends a line as well."""

    def __init__(self, path: Path, on_line: Callable[[str], None]) -> None:
        self._path, self._on_line, self._size = path, on_line, 0

    def poll(self) -> None:
        """Reports the last line if there is a new one."""
        try:
            size = self._path.lstat().st_size
        except OSError:
            return
        if size != self._size:
            self._size = size
            line = next((line for line in reversed(read_tail(self._path).splitlines()) if line.strip()), None)
            if line is not None:
                self._on_line(line.strip())


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


_CHUNK_BYTES = 65536
_LONGEST_LINE_BYTES = 2**20  # a longer line is cut, minus a possible beginning of a secret
_JOIN_S = 5.0  # the command and its child processes have ended, so the pipe ends, too


class Log:
    """A log that a command will write.

    Attributes:
        file: stdout or stderr of the command; close it once the command has it.
    """

    def __init__(self, folder: Path, name: str, mask: Mask, keep: str = "") -> None:
        self._thread: threading.Thread | None = None
        self.file: BinaryIO = create_untrusted(folder, name)
        if mask.values:
            log, (source, target) = self.file, os.pipe()
            self.file = os.fdopen(target, "wb", buffering=0)
            self._thread = threading.Thread(target=_copy, args=(source, log, mask, keep), daemon=True)
            self._thread.start()

    def finish(self) -> None:
        if self._thread is not None:
            self._thread.join(_JOIN_S)


def _copy(source: int, log: BinaryIO, mask: Mask, keep: str) -> None:
    """Copies lines until the pipe ends; if the log cannot be written, the command gets SIGPIPE."""
    with contextlib.suppress(OSError), log, os.fdopen(source, "rb", buffering=0) as pipe:
        bounded_log = supervisor.Log(log.fileno(), keep.encode())  # keeps the head and the tail of a long log
        pending = b""
        while chunk := pipe.read(_CHUNK_BYTES):
            pending += chunk
            complete = max(pending.rfind(b"\n"), pending.rfind(b"\r")) + 1
            if not complete and len(pending) > _LONGEST_LINE_BYTES:
                pending = mask.bytes(pending)
                complete = len(pending) - mask.longest
            if complete > 0:
                bounded_log.write(mask.bytes(pending[:complete]))
                pending = pending[complete:]
        bounded_log.write(mask.bytes(pending))
        bounded_log.close()
