"""The launch of an unchanged program with the JAX profiler inside.

In: a command and the user's environment. Out: the program's exit code, and the hook's notes from each process as
`Notes`. `render_environment` is the pure part: it makes the program's environment variables. `run` passes stdin,
stdout, stderr, signals and the exit code through.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from nightjar_profiling.errors import InputError

HOOK = Path(__file__).parent / "hook"
FORWARDED = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
OF_THE_TERMINAL = (signal.SIGINT, signal.SIGQUIT)  # its keys reach the program by themselves
STACK_VARIABLES = {
    "JAX_INCLUDE_FULL_TRACEBACKS_IN_LOCATIONS": "1",
    "JAX_TRACEBACK_IN_LOCATIONS_LIMIT": "-1",  # no limit
    # A program from the compilation cache carries the lines of whoever compiled it, unless they are part of the key.
    "JAX_COMPILATION_CACHE_INCLUDE_METADATA_IN_KEY": "1",
}
TOLD = ("cwd", "python", "devices", "versions", "usage")  # by the hook, of the traced program


@dataclass(frozen=True, slots=True, kw_only=True)
class Notes:
    """The hook's notes on one process of the program."""

    pid: int
    state: str
    error: str | None
    seen: tuple[int, int] | None
    traced: tuple[int, int] | None
    process_index: int | None
    environment: dict[str, Any]
    dumped_to: Path | None = None  # the user's own folder for XLA's dumps
    dumped_since_ns: int = 0


def render_environment(
    environ: Mapping[str, str],
    raw: Path,
    steps: tuple[int, int] | None,
    backend: str = "jax",
    seconds: float | None = None,
) -> dict[str, str]:
    """The environment of the traced program: the user's own, with stacks kept and the hook first on PYTHONPATH."""
    earlier = environ.get("PYTHONPATH")
    hook = {
        "PYTHONPATH": f"{HOOK}{os.pathsep}{earlier}" if earlier else str(HOOK),
        "NIGHTJAR_CAPTURE_RAW": str(raw),
        "NIGHTJAR_CAPTURE_BACKEND": backend,
        "NIGHTJAR_CAPTURE_FOR": str(seconds or ""),
        "NIGHTJAR_CAPTURE_STEPS": "" if steps is None else f"{steps[0]}:{steps[1]}",
    }
    return {**STACK_VARIABLES, **environ, **hook}


def find_lost_stacks(environ: Mapping[str, str]) -> list[str]:
    """Warnings for settings of the user that keep Python stacks out of the compiled programs."""
    reasons = []
    if environ.get("JAX_INCLUDE_FULL_TRACEBACKS_IN_LOCATIONS", "1").lower() in {"0", "false", "off", "no"}:
        reasons.append(
            "JAX_INCLUDE_FULL_TRACEBACKS_IN_LOCATIONS is off: of each stack only the line is known that does the "
            "operation, not who called it."
        )
    if environ.get("JAX_TRACEBACK_IN_LOCATIONS_LIMIT") == "0":
        reasons.append("JAX_TRACEBACK_IN_LOCATIONS_LIMIT=0: no instruction carries a Python stack.")
    return reasons


def telling_its_id(path: Path, command: Sequence[str]) -> list[str]:
    """The command that writes the id of its process into a file before it becomes the program."""
    return ["/bin/sh", "-c", 'echo $$ > "$0"; exec "$@"', str(path), *command]


def check_program(command: Sequence[str]) -> None:
    """Refuses a command that cannot be run, before any other work."""
    if shutil.which(command[0]) is None:
        exists = os.sep in command[0] and Path(command[0]).exists()
        raise cannot_run(command, os.strerror(errno.EACCES if exists else errno.ENOENT))


def cannot_run(command: Sequence[str], why: str) -> InputError:
    """The error of a command that is missing, or not a program."""
    if command[0].endswith(".py"):
        hint = f"write it after --, for example `-- python {command[0]}`"
    else:
        hint = None
    return InputError(f"capture: cannot run {command[0]!r}: {why}.", hint)


def run(command: Sequence[str], environment: Mapping[str, str], id_file: Path | None = None) -> int:
    """Runs a program to its end.

    Args:
        command: the program, or a profiler that runs it.
        id_file: to which the program writes its process id when a profiler starts it. Signals then go to the program: a
            profiler may end of one without its report, and leave the program running.

    """
    child: subprocess.Popen[bytes] | None = None

    def forward(number: int, frame: FrameType | None) -> None:
        if child is None or (number in OF_THE_TERMINAL and in_foreground()):
            return
        try:
            os.kill(int(id_file.read_text()) if id_file is not None else child.pid, number)
        except (OSError, ValueError):  # no program yet, or no more
            child.send_signal(number)

    earlier = {
        number: signal.signal(number, forward)
        for number in FORWARDED
        if signal.getsignal(number) is not signal.SIG_IGN  # under nohup the program shall ignore it as well
    }
    try:
        child = subprocess.Popen(list(command), env=dict(environment))
        return child.wait()
    except (FileNotFoundError, PermissionError, NotADirectoryError) as error:
        raise cannot_run(command, str(error.strerror)) from None
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
        if id_file is not None:
            id_file.unlink(missing_ok=True)


def in_foreground() -> bool:
    """Whether a Ctrl-C at the terminal reaches this process and its child by itself."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    finally:
        os.close(terminal)


def read_notes(raw: Path) -> list[Notes]:
    """The hook's notes, one per process that imported JAX, in order of process index."""
    notes = []
    for path in raw.glob("*.json"):
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            continue  # killed while writing: the trace, if any, is still read
        notes.append(
            Notes(
                pid=data["pid"],
                state=data["state"],
                error=data["error"],
                seen=_pair(data["seen"]),
                traced=_pair(data["traced"]),
                process_index=data.get("process_index"),
                dumped_to=Path(data["dumped_to"]) if "dumped_to" in data else None,
                dumped_since_ns=data.get("dumped_since_ns", 0),
                environment={key: data[key] for key in TOLD if key in data},
            )
        )
    return sorted(notes, key=lambda one: (one.process_index is None, one.process_index or 0, one.pid))


def _pair(value: list[int] | None) -> tuple[int, int] | None:
    if value is None:
        return None
    return (value[0], value[1])
