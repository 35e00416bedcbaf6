"""One command in a process that has imported everything, with one fault.

In: a world's folder, words, a fault. Out: the exit code (negative: the signal), what it printed, how many calls wrote.
The process is forked, so that five thousand of them take minutes.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import MappingProxyType

from nightjar_ci.cli import main
from tests.faults.worlds import Words

KINDS: Mapping[str, tuple[int, bool]] = MappingProxyType(
    {
        "EIO": (errno.EIO, False),
        "ENOSPC": (errno.ENOSPC, True),  # a full disk stays full until the command has ended
        "EACCES": (errno.EACCES, False),
        "kill": (0, False),
    }
)
SHIM = Path(__file__).with_name("shim.c")
_LONGEST_S = 60


@dataclass(frozen=True, slots=True)
class End:
    """How a command ended."""

    code: int
    said: str
    writes: int


def compile_shim(folder: Path) -> Path:
    """The library that makes calls fail."""
    library = folder / "shim.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(SHIM), "-ldl"], check=True)
    return library


def run(library: Path, folder: Path, words: Words, at: int = 0, kind: str = "kill") -> End:
    """Runs a command in a world.

    Args:
        library: from `compile_shim`; this process was started with it in LD_PRELOAD.
        folder: the world.
        words: after `nightjar-ci`.
        at: the number of the call that fails, from 1; 0 for none.
        kind: of `KINDS`.
    """
    reading, writing = os.pipe()
    with tempfile.TemporaryFile() as said:
        child = os.fork()
        if child == 0:
            _become(library, folder, words, at, kind, said.fileno(), writing)
        os.close(writing)
        _, status = os.waitpid(child, 0)
        writes = os.read(reading, 32)
        os.close(reading)
        said.seek(0)
        text = said.read().decode(errors="replace")
    return End(os.waitstatus_to_exitcode(status), text, int(writes or b"0"))


def _become(library: Path, folder: Path, words: Words, at: int, kind: str, said: int, writing: int) -> None:
    """In the forked process: runs the command and ends."""
    code = 99
    try:
        signal.alarm(_LONGEST_S)
        _enter(folder, said)
        shim = ctypes.CDLL(str(library))
        error, lasting = KINDS[kind]
        shim.fault_arm(str(folder).encode(), at, error, lasting)
        try:
            main(list(words))
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        shim.fault_seen.restype = ctypes.c_long
        os.write(writing, str(shim.fault_seen()).encode())
    finally:
        os._exit(code)


def _enter(folder: Path, said: int) -> None:
    os.chdir(folder)
    os.environ.update(NIGHTJAR_STATE_DIR=str(folder / "state"), HOME=str(folder), NIGHTJAR_SANDBOX="off")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(said, 1)
    os.dup2(said, 2)


def import_for(folder: Path, words: Words) -> None:
    """Imports in this process what a command imports, so that forked ones need not."""
    names = folder / "modules"
    child = os.fork()
    if child == 0:
        try:
            _enter(folder, os.open(os.devnull, os.O_WRONLY))
            main(list(words))
        finally:
            names.write_text("\n".join(sys.modules))
            os._exit(0)
    os.waitpid(child, 0)
    for name in names.read_text().splitlines():
        if name.partition(".")[0] not in ("__main__", "__mp_main__"):
            import_module(name)
    names.unlink()
