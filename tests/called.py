"""Commands called in this process: a three-hundredth of the CPU time of a process of their own.

In: the `main` of a package and its arguments. Out: what `subprocess.run` would return. What the command itself starts
writes to the same streams, and its changes of environment and folder end with it. A test about the process (signals,
limits, imports, a closed pipe) starts one, and tests/repo/test_command_lines.py starts each command once.
"""

import io
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest


def call(
    main: Callable[[], object], *arguments: object, cwd: Path | None = None, environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Calls `main` with these arguments, in a folder and with an environment: by default this process's."""
    words = [str(argument) for argument in arguments]
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        before = dict(os.environ)
        stack.callback(_set_environment, before)
        _set_environment(before if environ is None else environ)
        patch.setattr(sys, "argv", [main.__module__, *words])
        if cwd is not None:
            patch.chdir(cwd)
        out, err = (stack.enter_context(_redirect(number, name)) for number, name in ((1, "stdout"), (2, "stderr")))
        try:
            main()
            code = 0
        except SystemExit as ended:
            code = _read_code(ended)
        except Exception:  # as Python ends a process
            traceback.print_exc()
            code = 1
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
        sys.stdout.flush()
        sys.stderr.flush()
        return subprocess.CompletedProcess(words, code, _read(out), _read(err))


def _read_code(ended: SystemExit) -> int:
    if isinstance(ended.code, str):
        print(ended.code, file=sys.stderr)
        return 1
    return ended.code or 0


def _set_environment(environ: Mapping[str, str]) -> None:
    for name in os.environ.keys() - environ.keys():
        del os.environ[name]
    os.environ.update(environ)


def _read(file: io.BufferedRandom) -> str:
    file.seek(0)
    return file.read().decode().replace("\r\n", "\n")


@contextmanager
def _redirect(number: int, name: str) -> Iterator[io.BufferedRandom]:
    kept, stream = os.dup(number), getattr(sys, name)
    stream.flush()
    with (
        tempfile.TemporaryFile() as file,
        open(number, "w", encoding="utf-8", errors="backslashreplace", closefd=False) as text,
    ):
        os.dup2(file.fileno(), number)
        setattr(sys, name, text)
        try:
            yield file
        finally:
            text.flush()
            setattr(sys, name, stream)
            os.dup2(kept, number)
            os.close(kept)
