"""Subprocess isolation of the compiler, since XLA aborts its whole process when LLVM fails.

In: a function and its arguments, which both processes can import. Out: the function's result, or a `CompilerError` with
the end of the compiler's log; the next call then starts a new process. Starting one costs as much as importing JAX, so
the process serves the calls that follow. It ends together with its parent, even if the parent was killed, and leaves no
dumps.

`watched_folder` is for a program that compiles in its own process: if that process dies, a small watcher prints the end
of the log and removes the folder.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import Concatenate, ParamSpec, TypeVar

from nightjar_models.aot.compile_errors import find_remedy, make_error

LOG = "log"  # in the folder that the compiler dumps to
Parameters = ParamSpec("Parameters")
Answer = TypeVar("Answer")
_ENDED = "the compiler's process died"
_LINES, _WIDTH = 6, 400
_NOISE = re.compile(r"I\d{4} |.*\*\*\*|\s*@ +0x|[^a-zA-Z]*$")  # information, a stack frame, or no words


class CompilerProcess:
    """Calls functions in another process, one after the other."""

    def __init__(self) -> None:
        self._worker: tuple[SpawnProcess, Connection] | None = None

    def __enter__(self) -> CompilerProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def call(
        self,
        function: Callable[Concatenate[Path, Parameters], Answer],
        *args: Parameters.args,
        **kwargs: Parameters.kwargs,
    ) -> Answer:
        """The function's result; its first argument is an empty folder for its files, removed afterwards."""
        _, pipe = self._worker = self._worker or _start()
        with tempfile.TemporaryDirectory(prefix="nightjar-") as folder:
            try:
                pipe.send(folder)  # first, so that the worker can remove it whatever happens
                pipe.send((function, args, kwargs))
                answer, error = pipe.recv()
            except (EOFError, OSError):
                self._end()
                raise make_error(f"{_ENDED}: {' | '.join(tail_log(Path(folder)))}") from None
            except BaseException:  # Ctrl-C: the worker may still write into the folder that is removed next
                self._end()
                raise
        if error is not None:
            raise error
        return answer  # type: ignore[no-any-return]

    def _end(self) -> None:
        if self._worker is not None:
            process, pipe = self._worker
            process.kill()
            process.join()
            pipe.close()
        self._worker = None


def _start() -> tuple[SpawnProcess, Connection]:
    parent_end, worker_end = get_context("spawn").Pipe()  # JAX has threads: no fork
    process = get_context("spawn").Process(target=_serve, args=(worker_end,), daemon=True)
    process.start()
    worker_end.close()
    return process, parent_end


def _serve(pipe: Connection) -> None:
    """The other process: serves calls until the parent closes the pipe."""
    os.setsid()  # Ctrl-C goes to the parent, which then ends this process
    folders: list[str] = []
    Thread(target=_end_with_parent, args=(folders,), daemon=True).start()
    while True:
        try:
            folders[:] = [pipe.recv()]
            function, args, kwargs = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((function(Path(folders[0]), *args, **kwargs), None))
        except Exception as error:
            pipe.send((None, error))


def _end_with_parent(folders: list[str]) -> None:
    """Ends this process when its parent ends, even if that was killed in the middle of a compilation."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


def tail_log(folder: Path) -> list[str]:
    """The end of the compiler's log, without stack frames and information."""
    log = folder / LOG
    lines = log.read_text(errors="replace").splitlines() if log.is_file() else []
    messages = [line[:_WIDTH] for line in lines if not _NOISE.match(line)]
    return messages[-_LINES:] or ["no output; it may have been killed for lack of memory"]


@contextmanager
def watched_folder() -> Iterator[Path]:
    """An empty folder to compile in; if this process dies, another one prints `tail_log` and removes the folder."""
    with tempfile.TemporaryDirectory(prefix="nightjar-") as folder:
        command = [sys.executable, "-m", __name__, folder]
        with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as watcher:
            try:
                yield Path(folder)
            finally:
                watcher.communicate(b"\n")


def watch(folder: Path) -> None:
    """Waits for a line on stdin; if stdin ends without one, prints the end of the log and removes the folder."""
    if not sys.stdin.readline():
        messages = tail_log(folder)
        print(f"error: {_ENDED}. The end of its log:", *messages, sep="\n", file=sys.stderr)
        if remedy := find_remedy("\n".join(messages)):
            print(f"Hint: {remedy.hint}", file=sys.stderr)
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    watch(Path(sys.argv[1]))
