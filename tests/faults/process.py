"""One command in a process that has imported everything, with one fault.

In: a world's folder, words, a fault. Out: the exit code (negative: the signal), what it printed, which calls wrote.
The process is forked, so that five thousand of them take minutes.
"""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A way to fail.

    Attributes:
        error: the error number; 0 kills the process, a call that writes bytes after half of them.
        stays: every later call on files, or on sockets, fails, too, until the command has ended.
        halves: the call writes half of its bytes and succeeds, and the later ones fail.
        of: the calls that can fail so, by the letters of `shim.c`.
    """

    error: int
    stays: bool = False
    halves: bool = False
    of: str = "bf"


# No two of these leave the same state: where a single error is told from a lasting one, what cleans up fails, too; a
# system without room, one that broke and one that became read-only take other ways through SQLite and tempfile.
KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "EIO": Kind(error=errno.EIO),
        "EIO-stays": Kind(error=errno.EIO, stays=True),
        "ENOSPC": Kind(error=errno.ENOSPC, stays=True),  # a full disk stays full
        "ENOSPC-half": Kind(error=errno.ENOSPC, stays=True, halves=True, of="b"),
        "EACCES": Kind(error=errno.EACCES),
        "EROFS": Kind(error=errno.EROFS, stays=True),
        "ECONNRESET": Kind(error=errno.ECONNRESET, of="s"),
        "ENETDOWN": Kind(error=errno.ENETDOWN, stays=True, of="s"),
        "kill": Kind(error=0, of="bfs"),
    }
)
SHIM = Path(__file__).with_name("shim.c")
_LONGEST_S = 60


@dataclass(frozen=True, slots=True)
class End:
    """How a command ended; of a killed one, without its calls."""

    code: int
    said: str
    writes: str  # a letter for each call that writes


def compile_shim(folder: Path) -> Path:
    library = folder / "shim.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(SHIM), "-ldl"], check=True)
    return library


def run(
    library: Path, folder: Path, words: Words, variables: Mapping[str, str], at: int = 0, kind: str = "kill"
) -> End:
    reading, writing = os.pipe()
    with tempfile.TemporaryFile() as said:
        child = os.fork()
        if child == 0:
            _become(library, folder, words, variables, at, kind, said.fileno(), writing)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            writes = pipe.read().decode()
        _, status = os.waitpid(child, 0)
        said.seek(0)
        text = said.read().decode(errors="replace")
    return End(os.waitstatus_to_exitcode(status), text, writes)


def _become(
    library: Path, folder: Path, words: Words, variables: Mapping[str, str], at: int, kind: str, said: int, writing: int
) -> None:
    """In the forked process: runs the command and ends."""
    code = 99
    try:
        signal.alarm(_LONGEST_S)
        _enter(folder, said, variables)
        shim, way = ctypes.CDLL(str(library)), KINDS[kind]
        shim.fault_arm(str(folder).encode(), at, way.error, way.stays, way.halves, bool(variables))
        try:
            main(list(map(os.path.expandvars, words)))
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        shim.fault_seen.restype = ctypes.c_char_p
        os.write(writing, shim.fault_seen())
    finally:
        os._exit(code)


def _enter(folder: Path, said: int, variables: Mapping[str, str]) -> None:
    os.chdir(folder)
    os.environ.update(NIGHTJAR_STATE_DIR=str(folder / "state"), HOME=str(folder), NIGHTJAR_SANDBOX="off", **variables)
    os.environ["PATH"] = f"{folder / 'bin'}:{os.environ['PATH']}"
    tempfile.tempdir = os.environ["TMPDIR"] = str(folder / "tmp")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(said, 1)
    os.dup2(said, 2)


def import_for(folder: Path, words: Words, variables: Mapping[str, str]) -> None:
    """Imports in this process what a command imports, so that forked ones need not."""
    names = folder / "modules"
    child = os.fork()
    if child == 0:
        try:
            _enter(folder, os.open(os.devnull, os.O_WRONLY), variables)
            main(list(map(os.path.expandvars, words)))
        finally:
            names.write_text("\n".join(sys.modules))
            os._exit(0)
    os.waitpid(child, 0)
    for name in names.read_text().splitlines():
        if name.partition(".")[0] not in ("__main__", "__mp_main__"):
            import_module(name)
    names.unlink()
