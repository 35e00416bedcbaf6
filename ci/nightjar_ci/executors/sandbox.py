"""The sandbox of a job on this machine, made by bubblewrap if it works.

In: a job's command, its variables and its folders. Out: the command line that runs it so that it sees only the paths of
`visible` and writes only to its output folder, the working directory, a private `/tmp`, new entries of `~/.cache` that
vanish with it, the programs that its night compiled, and the folders that `NIGHTJAR_SANDBOX_WRITES` names. It has no
network but loopback unless `NIGHTJAR_SANDBOX=network`, no privileges, and sees no other processes. Source: bwrap(1).
"""

from __future__ import annotations

import errno
import functools
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from nightjar_ci.executors.visible import TEMPORARY, Visible, find_trusted, list_visible, render_system
from nightjar_ci.formats.night_folder import find_programs

_PROBE_S = 10.0
# SIGTERM goes to the whole process group. Bubblewrap would die of it and take the job along, which may end by itself.
_IGNORING_SIGTERM = 'trap "" TERM; exec "$@"'
_OWN = ("tmp", "cache")  # private to a job, in a temporary folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """How the jobs of this process are confined.

    Attributes:
        program: path of bwrap.
        network: whether a job reaches the network.
        home: the user's home folder.
        state_dir: Nightjar's own folder, which a job does not see although it may lie in the working directory.
        writable: further folders that a job may write.
        readable: further paths that a job sees.
    """

    program: str
    network: bool
    home: Path
    state_dir: Path
    writable: tuple[Path, ...] = ()
    readable: tuple[Path, ...] = ()

    @contextmanager
    def confine(
        self, command: Sequence[str], environ: Mapping[str, str], folder: Path, cwd: Path, named: Iterable[str] = ()
    ) -> Iterator[tuple[tuple[str, ...], dict[str, str]]]:
        """The command line and the variables of a confined job, for as long as the context lives.

        Args:
            named: words besides the command, such as the matrix's variables, that may name paths.
        """
        repository = cwd / ".git"
        is_new = not os.path.lexists(repository)
        with TemporaryDirectory(prefix="nightjar-job-", ignore_cleanup_errors=True) as name:
            temporary = Path(name)
            for own in _OWN:
                (temporary / own).mkdir()
            line = self.render(command, environ, folder=folder, cwd=cwd, temporary=temporary, named=named)
            yield line, {**environ, "TMPDIR": TEMPORARY[0]}
        if is_new and os.path.lexists(repository):  # the user's next git command would believe it
            _remove(repository)

    def render(
        self,
        command: Sequence[str],
        environ: Mapping[str, str],
        *,
        folder: Path,
        cwd: Path,
        temporary: Path,
        named: Iterable[str] = (),
    ) -> tuple[str, ...]:
        """The command line of a confined job; see `confine`. `temporary` holds its `/tmp` and its `~/.cache`."""
        options = [*render_system(), "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--cap-drop", "ALL"]
        options += ["--die-with-parent"]
        if not self.network:
            options.append("--unshare-net")
        words = [*command, *named]
        seen = list_visible(words, environ, cwd, self.home, self.readable, temporary)
        night = folder.parent.parent if folder.parent.name == "jobs" else folder.parent
        hidden = [self.state_dir.resolve(), night.resolve()]
        places = [*self.writable, *self._find_cache(environ, cwd, hidden)]
        if not self.home.resolve().is_relative_to(cwd.resolve()):
            places.append(cwd)
        for path in places:
            seen.write(path, hidden)
        self._protect(seen, cwd.resolve(), folder.resolve(), hidden)
        if programs := find_programs(folder):
            seen.mount("--bind", programs)
        seen.mount("--bind", folder)
        options += [*seen.render(), "--chdir", str(cwd)]
        leave_default = ("env", "--default-signal=TERM", "--")
        return ("/bin/sh", "-c", _IGNORING_SIGTERM, "sandbox", self.program, *options, "--", *leave_default, *command)

    def _find_cache(self, environ: Mapping[str, str], cwd: Path, hidden: Sequence[Path]) -> Iterator[Path]:
        """The folder of XLA's compiled programs, unless a matrix names one where a job must not write."""
        named = environ.get("JAX_COMPILATION_CACHE_DIR", "")
        if not named or not (cache := Path(named).resolve()).is_dir():
            return
        if named == os.environ.get("JAX_COMPILATION_CACHE_DIR"):
            yield cache
        forbidden = (cwd.resolve(), *hidden)  # the working directory is writable except for what is protected
        if any(cache.is_relative_to(path) or path.is_relative_to(cache) for path in forbidden):
            return
        allowed = [path.resolve() for path in (self.home / ".cache", *map(Path, TEMPORARY))]
        if any(path in cache.parents for path in allowed):
            yield cache

    def _protect(self, seen: Visible, cwd: Path, folder: Path, hidden: Sequence[Path]) -> None:
        """Hides Nightjar's folders and makes read-only what later commands run, in all that a job may write.

        A folder in which one of them lies is mounted onto itself: so it cannot be renamed and replaced.
        """
        protected = [seen.mount("--ro-bind", path) for path in find_trusted(cwd)]
        if self.state_dir.resolve().is_relative_to(cwd):
            self.state_dir.mkdir(parents=True, exist_ok=True)  # a job would make one
        for path in hidden:
            if not cwd.is_relative_to(path) or path == hidden[0]:
                protected.append(seen.mount("--tmpfs", path))
        for path in (*protected, folder):
            for parent in path.parents[: -len(cwd.parts)] if path.is_relative_to(cwd) else ():
                if parent not in seen.mounts and not any(parent.is_relative_to(other) for other in protected):
                    seen.mount("--bind", parent)


def _remove(path: Path) -> None:
    with suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()


def find_sandbox(
    mode: str, home: Path, state_dir: Path, writable: Iterable[Path] = (), readable: Iterable[Path] = ()
) -> Sandbox | None:
    """The sandbox of this machine; None if it is switched off, or bubblewrap is missing or does not work.

    Args:
        mode: `auto`, `network` or `off`.
        writable: further folders that jobs may write.
        readable: further paths that they see.
    """
    program = None if mode == "off" else shutil.which("bwrap")
    if program is None or _find_refusal(program) is not None:
        return None
    return Sandbox(
        program=program,
        network=mode == "network",
        home=home,
        state_dir=state_dir,
        writable=tuple(writable),
        readable=tuple(readable),
    )


def find_lack(mode: str) -> str | None:
    """Why jobs are not confined although nobody switched the sandbox off; None if they are, or it is off."""
    if mode == "off":
        return None
    program = shutil.which("bwrap")
    if program is None:
        return "bubblewrap is not installed"
    refusal = _find_refusal(program)
    if refusal is None:
        return None
    return f"bubblewrap does not work here: {refusal}"


def check_program(name: str, environ: Mapping[str, str], cwd: Path) -> None:
    """Finds the program of a command as the system would, since bubblewrap's own message says less."""
    if "/" in name:
        (cwd / name).stat()
        if not os.access(cwd / name, os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), name)
    elif shutil.which(name, path=environ.get("PATH")) is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)


@functools.cache
def _find_refusal(program: str) -> str | None:
    """The error of a bwrap that does not work; a system may refuse it, as containers and Ubuntu 24.04 do."""
    options = ("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--unshare-pid", "--unshare-net")
    command = (program, *options, "--", "env", "--default-signal=TERM", "--", "true")
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=_PROBE_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return None
    said = done.stderr.decode(errors="replace").strip().splitlines()
    if said:
        return said[-1][:200]
    return f"exit status {done.returncode}"
