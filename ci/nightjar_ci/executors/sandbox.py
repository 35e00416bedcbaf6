"""The sandbox of a job on this machine, made by bubblewrap if it works.

In: a job's command, its variables and its folders. Out: the command line that runs it so that it sees all files and can
write only to its output folder, the working directory, a private `/tmp`, new entries of `~/.cache` that vanish with it,
the programs that its night compiled, and the folders that `NIGHTJAR_SANDBOX_WRITES` names. Of the system's `/tmp` it
sees paths that its command and PATH name. It has no network but loopback unless `NIGHTJAR_SANDBOX=network`, no
privileges, does not see other processes or the sockets of services, and finds the usual places of passwords empty.
Source: bwrap(1).
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

from nightjar_ci.formats.night_folder import find_programs

_PROBE_S = 10.0
# SIGTERM goes to the whole process group. Bubblewrap would die of it and take the job along, which may end by itself.
_IGNORING_SIGTERM = 'trap "" TERM; exec "$@"'
_TEMPORARY = ("/tmp", "/var/tmp")
_OWN = ("tmp", "cache")  # private to a job, in a temporary folder
_CACHES_MAX = 256  # entries of ~/.cache, each a mount
_SERVICES_KEPT = ("systemd/resolve", "opengl-driver", "current-system", "nvidia-persistenced")  # of /run
_ACCELERATORS = ("nvidia*", "kfd", "dri", "accel*", "vfio", "infiniband")  # of /dev
_PASSWORDS = (
    ".ssh", ".aws", ".azure", ".docker", ".kube", ".gnupg", ".netrc", ".pypirc", ".git-credentials", ".pgpass",
    ".config/gh", ".config/gcloud", ".config/pip", ".cache/huggingface/token", ".huggingface/token",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """How the jobs of this process are confined.

    Attributes:
        program: path of bwrap.
        network: whether a job reaches the network.
        home: the user's home folder.
        state_dir: Nightjar's own folder, which a job cannot write although it may lie in the working directory.
        writable: further folders that a job may write.
    """

    program: str
    network: bool
    home: Path
    state_dir: Path
    writable: tuple[Path, ...] = ()

    @contextmanager
    def confine(
        self, command: Sequence[str], environ: Mapping[str, str], folder: Path, cwd: Path
    ) -> Iterator[tuple[tuple[str, ...], dict[str, str]]]:
        """The command line and the variables of a confined job, for as long as the context lives."""
        with TemporaryDirectory(prefix="nightjar-job-", ignore_cleanup_errors=True) as name:
            temporary = Path(name)
            for own in _OWN:
                (temporary / own).mkdir()
            line = self.render(command, environ, folder=folder, cwd=cwd, temporary=temporary)
            yield line, {**environ, "TMPDIR": _TEMPORARY[0]}

    def render(
        self, command: Sequence[str], environ: Mapping[str, str], *, folder: Path, cwd: Path, temporary: Path
    ) -> tuple[str, ...]:
        """The command line of a confined job; see `confine`. `temporary` holds its `/tmp` and its `~/.cache`."""
        options = ["--ro-bind", "/", "/", *_render_devices(), "--proc", "/proc", "--unshare-pid", "--unshare-ipc"]
        options += ["--unshare-uts", "--cap-drop", "ALL", *_render_services()]
        if not self.network:
            options.append("--unshare-net")
        for name in _TEMPORARY:
            options += ["--bind", str(temporary / "tmp"), name]
        options += _render_caches(self.home, temporary / "cache")
        for path in _find_hidden(command, environ, cwd):
            options += ["--ro-bind", str(path), str(path)]
        for path in self._find_writable(environ, cwd):
            options += ["--bind", str(path), str(path)]
        for path in (self.state_dir, cwd / ".git"):  # a hook would run with the user's next git command
            options += ["--ro-bind-try", str(path), str(path)]
        if programs := find_programs(folder):
            options += ["--bind", str(programs), str(programs)]
        options += ["--bind", str(folder), str(folder), *self._render_passwords(), "--chdir", str(cwd)]
        leave_default = ("env", "--default-signal=TERM", "--")
        return ("/bin/sh", "-c", _IGNORING_SIGTERM, "sandbox", self.program, *options, "--", *leave_default, *command)

    def _find_writable(self, environ: Mapping[str, str], cwd: Path) -> Iterator[Path]:
        """The folders that a job may write besides its own; the working directory unless it holds the home folder."""
        if not self.home.resolve().is_relative_to(cwd.resolve()):
            yield cwd
        yield from self.writable
        cache = environ.get("JAX_COMPILATION_CACHE_DIR", "")
        if cache and Path(cache).is_dir():
            yield Path(cache).absolute()

    def _render_passwords(self) -> Iterator[str]:
        for name in _PASSWORDS:
            path = self.home / name
            if path.is_dir():
                yield from ("--tmpfs", str(path))
            elif path.is_file():
                yield from ("--ro-bind", "/dev/null", str(path))


def _render_caches(home: Path, own: Path) -> Iterator[str]:
    """The user's caches, read-only, in a folder of the job's own: programs make caches, which are gone with the job."""
    with suppress(OSError):
        (home / ".cache").mkdir(mode=0o700, exist_ok=True)
        folder = (home / ".cache").resolve()
        entries = sorted(folder.iterdir())
        is_hidden = any(folder.is_relative_to(name) for name in _TEMPORARY)
        # a link to a folder that holds more than caches, such as /, would bring back paths that are hidden from the job
        if is_hidden or len(entries) > _CACHES_MAX or home.resolve().is_relative_to(folder):
            return
        yield from ("--bind", str(own), str(folder))
        for entry in entries:
            if entry.is_symlink():
                yield from ("--symlink", str(entry.readlink()), str(entry))
            else:
                yield from ("--ro-bind-try", str(entry), str(entry))


def find_sandbox(mode: str, home: Path, state_dir: Path, writable: Iterable[Path] = ()) -> Sandbox | None:
    """The sandbox of this machine; None if it is switched off, or bubblewrap is missing or does not work.

    Args:
        mode: `auto`, `network` or `off`.
        writable: further folders that jobs may write.
    """
    program = None if mode == "off" else shutil.which("bwrap")
    if program is None or _find_refusal(program) is not None:
        return None
    return Sandbox(program=program, network=mode == "network", home=home, state_dir=state_dir, writable=tuple(writable))


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


def _find_hidden(command: Sequence[str], environ: Mapping[str, str], cwd: Path) -> list[Path]:
    """A command's paths in the system's `/tmp`, which the job does not see: programs and absolute paths."""
    program = shutil.which(str(cwd / command[0]) if "/" in command[0] else command[0], path=environ.get("PATH"))
    programs = [Path(program), Path(program).resolve()] if program else []
    folders = {path.parent for path in programs} | set(map(Path, environ.get("PATH", "").split(os.pathsep)))
    # a Python's packages are next to its `bin`
    named = {folder.parent if folder.name == "bin" else folder for folder in folders}
    for word in command[1:]:
        path = Path(os.path.normpath(word.rpartition("=")[2]))
        is_whole = str(path.parent) in _TEMPORARY or _is_folder(path)
        named.add(path if is_whole else path.parent)
    return sorted(path for path in named if any(Path(name) in path.parents for name in _TEMPORARY) and _exists(path))


def _is_folder(path: Path) -> bool:
    with suppress(OSError):  # a word of a command may be too long for a path
        return path.is_dir()
    return False


def _exists(path: Path) -> bool:
    with suppress(OSError):
        return path.exists()
    return False


def _render_devices() -> tuple[str, ...]:
    """The devices: the ones that every program needs, or all if there is an accelerator."""
    devices = Path("/dev")
    if any(True for pattern in _ACCELERATORS for _ in devices.glob(pattern)):
        return ("--dev-bind", "/dev", "/dev")
    return ("--dev", "/dev")


def _render_services() -> Iterator[str]:
    """An empty /run, which holds the sockets of Docker and D-Bus, plus files for drivers and name resolution."""
    yield from ("--tmpfs", "/run")
    for name in _SERVICES_KEPT:
        yield from ("--ro-bind-try", f"/run/{name}", f"/run/{name}")
