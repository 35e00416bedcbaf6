"""Errors of XLA's compiler: its message, a workaround if one is known, and the end of its log if it died.

In: XLA's message, or the folder that the compiler writes its log to. Out: a `CompilerError`, or text on stderr.

XLA aborts its whole process when LLVM fails. So a program compiles in a `watched_folder`: if its process dies, a small
watcher prints the end of the log and removes the folder.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nightjar_models.errors import CompilerError

# The texts that all occur in a message, and the workaround; each is removed with the last release of JAX that needs it.
HINTS = {
    # XLA takes the tiles of a Triton product from those that it timed on the device; without a device it takes a
    # default, which does not fit every shape: 6,272 rows of `vit_b16`, which is 32 x 196 positions (jaxlib 0.10.1 to
    # 0.12).
    ("find output tile sizes",): (
        "add --xla xla_gpu_enable_triton_gemm=false: XLA's default tiles of a Triton product do not fit this program"
    ),
    # XLA's own kernel for the sum of one number over `data` and `fsdp` does not compile (jaxlib 0.12.0.1); NCCL's does.
    ("compiling Triton kernel", "all-reduce"): (
        "add --xla xla_gpu_experimental_use_collective_kernels=: XLA's own kernel for a small all-reduce does not "
        "compile"
    ),
}
LOG = "log"  # in the folder that the compiler dumps to
_LINES, _WIDTH = 6, 400
_NOISE = re.compile(r"I\d{4} |.*\*\*\*|\s*@ +0x|[^a-zA-Z]*$")  # information, a stack frame, or no words


def find_hint(message: str) -> str | None:
    """The workaround for a message of XLA, or None.

    >>> find_hint("INTERNAL: Couldn't find output tile sizes that satisfy hlo: %dot.737")[:44]
    'add --xla xla_gpu_enable_triton_gemm=false: '
    """
    return next((hint for parts, hint in HINTS.items() if all(part in message for part in parts)), None)


def make_error(message: str) -> CompilerError:
    """The error with XLA's message, and the workaround as its hint."""
    return CompilerError(message, find_hint(message))


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
        print("error: the compiler's process died. The end of its log:", *messages, sep="\n", file=sys.stderr)
        if hint := find_hint("\n".join(messages)):
            print(f"Hint: {hint}", file=sys.stderr)
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    watch(Path(sys.argv[1]))
