"""The allow-list of the sandbox: the paths that a job sees, and which of them it may write.

In: a job's command, its variables and its folders. Out: options of bwrap. All else is absent: the sandbox starts with
an empty root. Links on the way to a path are made again, so that a job finds it by each of its names.
Source: bwrap(1).
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit

import nightjar_ci

TEMPORARY = ("/tmp", "/var/tmp")
_SYSTEM = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "opt", "nix/store", "gnu/store", "sys")
_SERVICES = ("systemd/resolve", "opengl-driver", "current-system", "nvidia-persistenced")  # of /run
_SETTINGS = (
    "alternatives", "fonts", "group", "hosts", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "libibverbs.d", "localtime",
    "mime.types", "nsswitch.conf", "nvidia", "OpenCL", "openmpi", "os-release", "passwd", "pki/ca-trust/extracted",
    "pki/tls/cert.pem", "pki/tls/certs", "redhat-release", "resolv.conf", "services", "ssl/certs", "ssl/openssl.cnf",
    "static", "timezone", "vulkan",
)  # fmt: skip
_ACCELERATORS = ("nvidia*", "kfd", "dri", "accel*", "vfio", "infiniband", "gdrdrv")  # of /dev
_CONTROLS = ("sys", "sysrq-trigger", "irq", "bus", "fs")  # of /proc; root needs no privilege to write them
_VARIABLES = (
    "PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "LIBRARY_PATH", "PYTHONPATH", "CUDA_HOME", "CUDA_PATH", "SSL_CERT_FILE",
    "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "JAX_COMPILATION_CACHE_DIR",
)  # fmt: skip
_PASSWORDS = ("huggingface/token", "huggingface/stored_tokens")  # of ~/.cache
_CACHES_MAX = 256  # entries of ~/.cache, each a mount
_LINKS_MAX = 40  # path_resolution(7)

Kind = Literal["--ro-bind", "--bind", "--tmpfs"]


@dataclass(slots=True)
class Visible:
    """Paths that a job sees.

    Attributes:
        home: is empty, with all above it that a command or a variable names.
        mounts: real path to the option of bwrap and the path that is seen there.
        links: link to its target.
    """

    home: Path
    mounts: dict[Path, tuple[Kind, Path]] = field(default_factory=dict)
    links: dict[Path, str] = field(default_factory=dict)

    def follow(self, path: Path) -> Path:
        """The real path; the links on the way are made again."""
        reached, left, hops = Path("/"), list(path.absolute().parts[1:]), 0
        while left:
            part = left.pop(0)
            step = reached / part
            if part == "..":
                reached = reached.parent
            elif step.is_symlink() and (hops := hops + 1) <= _LINKS_MAX:
                target = step.readlink()
                self.links[step] = str(target)
                reached = Path("/") if target.is_absolute() else reached
                left[:0] = target.parts[target.is_absolute() :]
            else:
                reached = step
        return reached

    def mount(self, kind: Kind, path: Path, source: Path | None = None) -> Path:
        """Makes an existing path part of the list, whatever it is; returns the real path."""
        real = self.follow(path)
        if source is not None or real.exists():
            self.mounts[real] = (kind, source or real)
        return real

    def write(self, path: Path, hidden: Sequence[Path]) -> None:
        """Makes a folder writable, and all in it that was only shown: except environments, and what is in `hidden`."""
        real = self.mount("--bind", path)
        for other in [other for other, (kind, _) in self.mounts.items() if kind == "--ro-bind"]:
            is_kept = (other / "pyvenv.cfg").exists() or any(other.is_relative_to(folder) for folder in hidden)
            if real in other.parents and not is_kept:
                del self.mounts[other]

    def show(self, path: Path) -> None:
        """Shows a path that a command, a variable or the user names, unless it holds more than that."""
        with suppress(OSError, ValueError):  # a word of a command may be too long for a path, or hold a NUL
            if not _is_too_much(path.resolve(), self.home) and path.exists():
                self.mount("--ro-bind", path)

    def show_word(self, path: Path) -> None:
        """Shows a path of a command; of a file in a folder that is not hidden, also those that stand next to it."""
        with suppress(OSError, ValueError):
            real, home = path.resolve(), self.home.resolve()
            is_hidden = any(name.startswith(".") for name in real.parts[len(home.parts) : -1])
            if path.is_file() and not (real.is_relative_to(home) and is_hidden):
                self.show(path.parent)
            self.show(path)

    def show_programs(self, folder: Path) -> None:
        """Shows a folder of programs and, next to a `bin`, the libraries of its environment."""
        prefix = folder.parent
        self.show(folder)
        if folder.name in ("bin", "shims"):
            for path in find_parts(prefix, self.home):
                self.show(path)

    def show_program(self, path: Path) -> None:
        """Shows a program by each of its names, and the interpreter of a script."""
        for _ in range(_LINKS_MAX):
            self.show_programs(path.parent)
            if not path.is_symlink():
                break
            path = path.parent / path.readlink()
        with suppress(OSError), path.open("rb") as file:
            first = file.readline(512)
            if first.startswith(b"#!") and (words := first[2:].split()) and Path(os.fsdecode(words[0])) != path:
                self.show_programs(Path(os.fsdecode(words[0])).parent)

    def render(self) -> Iterator[str]:
        """The options of bwrap, from the root downwards."""
        empty = ["/"]
        for path in sorted({*self.mounts, *self.links}):
            above = next((self.mounts[parent] for parent in path.parents if parent in self.mounts), None)
            is_seen = above is not None and above[0] != "--tmpfs" and path.is_relative_to(above[1])
            kind, source = self.mounts.get(path, ("", path))
            if kind == "--tmpfs":
                if is_seen:
                    empty.append(str(path))
                yield from ("--tmpfs" if is_seen else "--dir", str(path))
            elif not kind and not is_seen:
                yield from ("--symlink", self.links[path], str(path))
            elif kind and not (is_seen and above and kind == above[0] == "--ro-bind" and source == path):
                yield from (kind, str(source), str(path))
        for name in empty:  # after all mounts in them
            yield from ("--remount-ro", name)


def _is_too_much(real: Path, home: Path) -> bool:
    """Whether a path holds the home folder, or is a part of the system that is shown entry by entry."""
    if home.resolve().is_relative_to(real) or any(Path(name).is_relative_to(real) for name in TEMPORARY):
        return True
    return any(real.is_relative_to(name) for name in ("/etc", "/dev", "/proc", "/run"))


def render_system() -> Iterator[str]:
    """The processes of the job and the devices that it may use."""
    yield from ("--proc", "/proc", "--dev", "/dev")
    for name in _CONTROLS:
        yield from ("--ro-bind-try", f"/proc/{name}", f"/proc/{name}")
    for path in sorted(path for pattern in _ACCELERATORS for path in Path("/dev").glob(pattern)):
        yield from ("--dev-bind", str(path), str(path))


def list_visible(
    command: Sequence[str], environ: Mapping[str, str], cwd: Path, home: Path, reads: Iterable[Path], temporary: Path
) -> Visible:
    """The paths that a job reads, and its temporary folders.

    Args:
        reads: further paths.
        temporary: holds its `/tmp`, and its `~/.cache`.
    """
    seen = Visible(home)
    for name in (*_SYSTEM, *(f"run/{name}" for name in _SERVICES), *(f"etc/{name}" for name in _SETTINGS)):
        seen.mount("--ro-bind", Path("/", name))
    for path in (home, Path("/run")):
        seen.mount("--tmpfs", path)
    for name in TEMPORARY:
        seen.mount("--bind", Path(name), temporary / "tmp")
    _show_caches(seen, temporary / "cache")
    for name in _VARIABLES:
        for text in dict.fromkeys(filter(os.path.isabs, environ.get(name, "").split(os.pathsep))):
            (seen.show_programs if name == "PATH" else seen.show)(Path(text))
    program = shutil.which(str(cwd / command[0]) if "/" in command[0] else command[0], path=environ.get("PATH"))
    if program is not None:
        seen.show_program(Path(program))
    for word in command[1:]:
        text = word.rpartition("=")[2]
        if "/" in text:
            seen.show_word(cwd / text)
    for path in reads:
        seen.show(path)
    _show_repository(seen, cwd)
    return seen


def _show_repository(seen: Visible, cwd: Path) -> None:
    """The work tree that a working directory is in, and the repository of a linked one."""
    tree = next((folder for folder in (cwd, *cwd.parents) if (folder / ".git").exists()), None)
    if tree is None:
        return
    seen.show(tree)
    with suppress(OSError, ValueError):
        folder = tree / (tree / ".git").read_text(encoding="utf-8").removeprefix("gitdir:").strip()
        common = folder / (folder / "commondir").read_text(encoding="utf-8").strip()
        if (common / "HEAD").is_file() and (folder / "HEAD").is_file():
            seen.show(folder)
            seen.show(common)


def _show_caches(seen: Visible, own: Path) -> None:
    """The user's caches, read-only, in a folder of the job's own: programs make caches, which are gone with the job."""
    with suppress(OSError):
        (seen.home / ".cache").mkdir(mode=0o700, exist_ok=True)
        folder = (seen.home / ".cache").resolve()
        entries = sorted(folder.iterdir())
        # a link to a folder that holds more than caches, such as /, would bring back paths that are hidden from the job
        if len(entries) > _CACHES_MAX or _is_too_much(folder, seen.home):
            return
        if any(folder.is_relative_to(name) for name in TEMPORARY):
            return
        seen.mount("--bind", seen.home / ".cache", own)
        for entry in entries:
            if entry.is_symlink():
                seen.links[entry] = str(entry.readlink())
            else:
                seen.mount("--ro-bind", entry)
        for name in _PASSWORDS:
            if (folder / name).exists():
                seen.mount("--ro-bind", folder / name, Path("/dev/null"))


@cache
def find_parts(prefix: Path, home: Path) -> tuple[Path, ...]:
    """The folders that the programs in `bin` of a prefix need: itself, its base Python, and editable projects."""
    if _is_too_much(prefix.resolve(), home) or prefix.resolve() == home.resolve() / ".local":
        parts = [prefix / "lib"] if prefix != Path("/") else []  # ~/.local/share holds keys
    elif prefix.resolve().parent != home.resolve() or any((prefix / name).exists() for name in ("lib", "libexec")):
        parts = [prefix]  # ~/.cargo holds a password
    else:
        return ()
    with suppress(OSError, UnicodeError):
        for line in (prefix / "pyvenv.cfg").read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition("=")
            if key.strip() == "home":
                parts += [Path(value.strip()), *find_parts(Path(value.strip()).parent, home)]
    for packages in (*prefix.glob("lib/python*/site-packages"), *prefix.glob("lib/python*/dist-packages")):
        parts += _find_projects(packages)
    return tuple(parts)


def _find_projects(packages: Path) -> Iterator[Path]:
    """The folders of projects that are installed editable."""
    for path in packages.glob("*.pth"):
        with suppress(OSError, UnicodeError):
            yield from (packages / line for line in path.read_text(encoding="utf-8").splitlines() if "/" in line)
    for path in packages.glob("*.dist-info/direct_url.json"):
        with suppress(OSError, ValueError, KeyError, TypeError):
            origin = json.loads(path.read_text(encoding="utf-8"))
            if origin["dir_info"].get("editable"):
                yield Path(unquote(urlsplit(origin["url"]).path))


@cache
def find_trusted(cwd: Path) -> tuple[Path, ...]:
    """The places in a working directory that a later command of the user runs or trusts, when the first job starts."""
    places = [cwd / ".git", *(path.parent for depth in ("*", "*/*") for path in cwd.glob(f"{depth}/pyvenv.cfg"))]
    with suppress(OSError, UnicodeError):
        for line in (cwd / ".gitmodules").read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition("=")
            if key.strip() == "path":
                places.append(cwd / value.strip() / ".git")
    own = Path(nightjar_ci.__file__).parent
    return tuple(path for path in (*places, own) if path.exists() and path.resolve().is_relative_to(cwd.resolve()))
