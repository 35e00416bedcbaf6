"""What of a compiler that ends its process? XLA does where LLVM fails, so here that is a process apart.

In: a function and its arguments, which both processes can import. Out: what it returns, or a `CompilerError` with the
last that the compiler said; the next call then starts a process anew. Starting one costs as much as importing JAX, so
it stays for the calls that follow. It ends with who started it, however that ended, and leaves no dumps.

`watched_folder` is for who compiles in its own process all the same: a small one outlives it, says the same, and
removes what it left.
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

from nightjar_models.aot.compile_errors import find_remedy, refuse

LOG = "log"  # in the folder that the compiler dumps to
Given = ParamSpec("Given")
Answer = TypeVar("Answer")
_ENDED = "the compiler ended its process"
_LINES, _WIDTH = 6, 400
_NOISE = re.compile(r"I\d{4} |.*\*\*\*|\s*@ +0x|[^a-zA-Z]*$")  # information, a stack, or no words at all


class Apart:
    """Calls functions in another process, one after the other."""

    def __init__(self) -> None:
        self._worker: tuple[SpawnProcess, Connection] | None = None

    def __enter__(self) -> Apart:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def call(
        self, function: Callable[Concatenate[Path, Given], Answer], *given: Given.args, **named: Given.kwargs
    ) -> Answer:
        """What the function returns; its first argument is an empty folder, removed afterwards, for what it leaves.

        Raises:
            CompilerError: the process ended.
            Exception: what the function raises.
        """
        _, pipe = self._worker = self._worker or _start()
        with tempfile.TemporaryDirectory(prefix="nightjar-") as folder:
            try:
                pipe.send(folder)  # known to the worker before anything is in it
                pipe.send((function, given, named))
                answer, error = pipe.recv()
            except (EOFError, OSError):
                self._end()
                raise refuse(f"{_ENDED}: {' | '.join(last_words(Path(folder)))}") from None
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
    ours, theirs = get_context("spawn").Pipe()  # JAX has threads: no fork
    process = get_context("spawn").Process(target=_serve, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    return process, ours


def _serve(pipe: Connection) -> None:
    """The other process: takes calls until nobody is there to make one."""
    os.setsid()  # Ctrl-C is for who started this, who then ends it
    folders: list[str] = []
    Thread(target=_follow, args=(folders,), daemon=True).start()
    while True:
        try:
            folders[:] = [pipe.recv()]
            function, given, named = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((function(Path(folders[0]), *given, **named), None))
        except Exception as error:
            pipe.send((None, error))


def _follow(folders: list[str]) -> None:
    """Ends this process with the one that started it, also where that was killed in the middle of a compilation."""
    started_by = parent_process()
    assert started_by is not None
    started_by.join()
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


def last_words(folder: Path) -> list[str]:
    """The end of what the compiler said, without stacks and what is no error."""
    log = folder / LOG
    lines = log.read_text(errors="replace").splitlines() if log.is_file() else []
    words = [line[:_WIDTH] for line in lines if not _NOISE.match(line)]
    return words[-_LINES:] or ["it said nothing; the system may have done so for want of memory"]


@contextmanager
def watched_folder() -> Iterator[Path]:
    """An empty folder to compile in; where this process ends meanwhile, another shows `last_words` and removes it."""
    with tempfile.TemporaryDirectory(prefix="nightjar-") as folder:
        command = [sys.executable, "-m", __name__, folder]
        with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as watcher:
            try:
                yield Path(folder)
            finally:
                watcher.communicate(b"\n")


def watch(folder: Path) -> None:
    """Waits until stdin says that all is well, or ends."""
    if not sys.stdin.readline():
        words = last_words(folder)
        print(f"error: {_ENDED}. The end of what it said:", *words, sep="\n", file=sys.stderr)
        if remedy := find_remedy("\n".join(words)):
            print(f"Hint: {remedy.hint}", file=sys.stderr)
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    watch(Path(sys.argv[1]))
