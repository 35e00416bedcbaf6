"""What of a compiler that ends its process? XLA does where LLVM fails, so here that is a process apart.

In: a function and its arguments, which both processes can import. Out: what it returns, or a `CompilerError` with the
last that the compiler said; the next call then starts a process anew. Starting one costs as much as importing JAX, so
it stays for the calls that follow.

`watched_folder` is for who compiles in its own process all the same: a small one outlives it, says the same, and
removes what it left.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from types import TracebackType
from typing import Concatenate, ParamSpec, TypeVar

from nightjar_models.ahead.refusal import find_remedy, refuse

LOG = "log"  # in the folder that the compiler dumps to
Given = ParamSpec("Given")
Answer = TypeVar("Answer")
_ENDED = "the compiler ended its process"
_LINES, _WIDTH = 6, 400
_FRAME = re.compile(r"[*FI]|[^a-zA-Z]*$")  # of a stack, information that is no error, or no words at all


class Apart:
    """Calls functions in another process, one after the other."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None

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
        if self._pool is None:
            self._pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"))  # JAX has threads: no fork
        with tempfile.TemporaryDirectory(prefix="nightjar-") as folder:
            try:
                return self._pool.submit(function, Path(folder), *given, **named).result()
            except BrokenProcessPool:
                self._end()
                raise refuse(f"{_ENDED}: {' | '.join(last_words(Path(folder)))}") from None

    def _end(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        self._pool = None


def last_words(folder: Path) -> list[str]:
    """The end of what the compiler said, without stacks."""
    log = folder / LOG
    lines = log.read_text(errors="replace").splitlines() if log.is_file() else []
    words = [line[:_WIDTH] for line in lines if not _FRAME.match(line)]
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
