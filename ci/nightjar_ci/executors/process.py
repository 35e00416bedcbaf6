"""How does a command run to its end, or to its timeout, and leave nothing behind?

In: an argument list, its environment variables, a folder for its logs and a timeout. Out: how it ended. The command
leads a session and process group of its own; whatever of the group still lives when the command has ended is killed,
also where we ourselves are killed: a shell that reads a pipe of ours waits for that. Its output goes straight into
files; nothing of it is held in memory.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

STDOUT, STDERR = "stdout.log", "stderr.log"
GRACE_S = 5.0  # between SIGTERM and SIGKILL: time to flush logs, short against any timeout worth having
_POLL_S = 0.05  # 20 wake-ups a second cost less than 0.1 % of a core
_TAIL_BYTES = 16384
_RSS_UNIT = 1 if sys.platform == "darwin" else 1024  # getrusage(2): kilobytes, on macOS bytes
_running: dict[int, Callable[[], None] | None] = {}  # process group to what ends the rest of its command


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a command ended.

    Attributes:
        exit_code: None where a signal ended it.
        signal: name of that signal, such as `SIGKILL`, else None.
        timed_out: whether it still ran at its timeout.
        duration_s: wall time.
        peak_rss_bytes: of the largest process of the command that was waited for; None where it never grew larger than
            this process, whose size a child is counted with from before it became the command.
    """

    exit_code: int | None
    signal: str | None
    timed_out: bool
    duration_s: float
    peak_rss_bytes: int | None


def run_process(
    command: Sequence[str],
    environ: Mapping[str, str],
    folder: Path,
    timeout_s: float,
    on_line: Callable[[str], None] | None = None,
    on_end: Callable[[], None] | None = None,
    cwd: Path | None = None,
    outside: Sequence[str] = (),
) -> Ended:
    """Runs a command to its end.

    Args:
        command: argument list; the program is looked up on `PATH` of `environ`.
        environ: all of its environment variables.
        folder: where `stdout.log` and `stderr.log` are written.
        timeout_s: when the group gets SIGTERM, and `GRACE_S` later SIGKILL.
        on_line: called with the last line written to stderr, for progress.
        on_end: called before the group is signalled at a timeout or an interruption, to end what runs outside it.
        cwd: its working directory; ours where None.
        outside: command that ends what runs outside the group, for when we are killed and cannot call `on_end`.

    Raises:
        OSError: the command cannot be started, or the logs cannot be written.
    """
    start = time.monotonic()
    with (folder / STDOUT).open("wb") as stdout, (folder / STDERR).open("wb") as stderr:
        process = subprocess.Popen(
            command,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
            cwd=cwd,
        )
    timed_out = False
    _running[process.pid] = on_end
    watchdog = _watch(process.pid, outside)
    try:
        if not _wait(process.pid, start + timeout_s, Follower(folder / STDERR, on_line) if on_line else None):
            timed_out = True
            _end_group(process.pid, on_end)
    except BaseException:  # Ctrl-C or SIGTERM for us: the job goes with us
        _end_group(process.pid, on_end)
        _reap(process)
        raise
    finally:
        del _running[process.pid]
        _dismiss(watchdog)  # before the group is reaped and its number is another's
    ours = _own_peak()
    peak = _reap(process)
    code = process.returncode
    return Ended(
        exit_code=code if code >= 0 else None,
        signal=signal_name(-code) if code < 0 else None,
        timed_out=timed_out,
        duration_s=time.monotonic() - start,
        peak_rss_bytes=peak * _RSS_UNIT if peak > ours else None,
    )


def _watch(group: int, outside: Sequence[str]) -> subprocess.Popen[bytes] | None:
    """A shell that kills a process group when our end of its pipe closes, as it does when we are killed."""
    script = 'read -r line; kill -s KILL -- "-$0"; [ $# -eq 0 ] || exec "$@"'
    try:
        return subprocess.Popen(
            ["/bin/sh", "-c", script, str(group), *outside],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError:  # no shell, no watchdog: the command itself is what counts
        return None


def _dismiss(watchdog: subprocess.Popen[bytes] | None) -> None:
    if watchdog is not None:
        watchdog.kill()
        assert watchdog.stdin is not None
        watchdog.stdin.close()
        watchdog.wait()


def end_running() -> None:
    """Ends every command that another thread of this process runs: Ctrl-C and SIGTERM reach the main thread alone."""
    for pid, on_end in list(_running.items()):
        if on_end is not None:
            on_end()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


def read_tail(path: Path, lines: int = 20) -> str:
    """The last lines of a log; empty where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


class Follower:
    """Hands on the last line that a log has got since the last look; a progress bar's `\\r` ends a line as well."""

    def __init__(self, path: Path, on_line: Callable[[str], None]) -> None:
        self._path, self._on_line, self._seen = path, on_line, 0

    def look(self) -> None:
        """Hands on the last line, if there is a new one."""
        try:
            size = self._path.stat().st_size
        except OSError:
            return
        if size != self._seen:
            self._seen = size
            line = next((line for line in reversed(read_tail(self._path).splitlines()) if line.strip()), None)
            if line is not None:
                self._on_line(line.strip())


def _wait(pid: int, deadline: float, follower: Follower | None = None) -> bool:
    """Waits until a child has ended, without reaping it: until then its group's number is nobody else's."""
    pause = 0.005
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
        if time.monotonic() >= deadline:
            return False
        time.sleep(min(pause, max(0.0, deadline - time.monotonic())))
        pause = min(pause * 1.5, _POLL_S)
        if follower is not None:
            follower.look()
    return True


def _end_group(pid: int, on_end: Callable[[], None] | None) -> None:
    if on_end is not None:
        on_end()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGTERM)
    with contextlib.suppress(KeyboardInterrupt, SystemExit):  # asked twice: do not wait
        _wait(pid, time.monotonic() + GRACE_S)


def _reap(process: subprocess.Popen[bytes]) -> int:
    """Kills what is left of the group, waits for its leader and returns the peak resident set, in the system's unit."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS says EPERM where only a zombie is left
        os.killpg(process.pid, signal.SIGKILL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)  # Popen must not wait for it again
    return usage.ru_maxrss


def _own_peak() -> int:
    """The peak resident set of this program, in the system's unit: getrusage(2) counts that of its parent as well."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def signal_name(number: int) -> str:
    """The name of a signal, such as `SIGKILL`."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
