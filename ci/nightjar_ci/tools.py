"""Tool runs whose failures are explained.

In: a command. Out: its stdout, or a `ToolError` with the command, its exit status and its last lines of output.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from nightjar_ci.errors import NightjarError
from nightjar_ci.untrusted.git import git_environment
from nightjar_ci.untrusted.inheritance import inherit_for_fetching

TAIL_LINES = 20


class ToolError(NightjarError):
    """docker, uv or a script of docker/ is missing or failed: exit code 3."""


def run_captured(
    argv: Sequence[str], *, cwd: Path | None = None, variables: Mapping[str, str] | None = None, hint: str | None = None
) -> str:
    """Runs a command and returns its stdout; carriage returns, as in a commit's subject, stay."""
    try:
        done = subprocess.run(argv, cwd=cwd, env=_environment(argv[0], variables), capture_output=True, check=False)
    except OSError as error:
        raise _not_started(argv, error, hint) from None
    if done.returncode != 0:
        said = (done.stderr or done.stdout).decode(errors="replace").splitlines()
        raise _failed(argv, done.returncode, said[-TAIL_LINES:], hint)
    return done.stdout.decode(errors="replace")


def run_streamed(
    argv: Sequence[str],
    on_line: Callable[[str], None],
    *,
    cwd: Path | None = None,
    variables: Mapping[str, str] | None = None,
    hint: str | None = None,
) -> None:
    """Runs a command and calls `on_line` with each line of its stdout and stderr."""
    tail: deque[str] = deque(maxlen=TAIL_LINES)
    try:
        process = subprocess.Popen(
            argv,
            cwd=cwd,
            env=_environment(argv[0], variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
    except OSError as error:
        raise _not_started(argv, error, hint) from None
    with process:
        try:
            for line in process.stdout or ():
                tail.append(line.rstrip())
                on_line(tail[-1])
        except BaseException:
            process.terminate()
            raise
    if process.returncode != 0:
        raise _failed(argv, process.returncode, list(tail), hint)


def _environment(program: str, variables: Mapping[str, str] | None) -> dict[str, str]:
    """All our variables, except for uv, which runs foreign code: it builds packages to read their requirements."""
    inherited = inherit_for_fetching(os.environ) if program == "uv" else git_environment(os.environ)
    return {**inherited, **(variables or {})}


def _not_started(argv: Sequence[str], error: OSError, hint: str | None) -> ToolError:
    return ToolError(f"`{shlex.join(argv)}` could not be started: {error.strerror}.", hint)


def _failed(argv: Sequence[str], status: int, tail: Sequence[str], hint: str | None) -> ToolError:
    output = "; last output:\n" + "\n".join(f"  {line}" for line in tail) + "\n" if tail else ", without output."
    return ToolError(f"`{shlex.join(argv)}` ended with exit status {status}{output}", hint)
