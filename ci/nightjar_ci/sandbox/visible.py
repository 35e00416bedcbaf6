"""The allow-list of the sandbox: the paths that a job sees, and which of them it may write.

In: a job's command, its variables and its folders. Out: options of bwrap. All else is absent: the sandbox starts with
an empty root. Source: bwrap(1).
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit

import nightjar_ci

TEMPORARY = ("/tmp", "/var/tmp")
_SEEN = tomllib.loads(Path(__file__).with_name("visible.toml").read_text(encoding="utf-8"))
_CACHES_MAX = 256  # entries of ~/.cache, each a mount: of more, a job sees none
_DEPTH = 2  # of environments and repositories in a working directory
_SCRIPTS = (".py", ".sh")

Kind = Literal["--ro-bind", "--bind", "--tmpfs"]


@dataclass(slots=True)
class Visible:
    """Paths that a job sees.

    Attributes:
        home: is empty, with all above it that a command or a variable names.
        hidden: folders in these that they do not see.
        mounts: path to the option of bwrap and the path that is seen there.
    """

    home: Path
    writable: tuple[Path, ...]
    hidden: tuple[Path, ...]
    mounts: dict[Path, tuple[Kind, Path]] = field(default_factory=dict)

    def mount(self, kind: Kind, path: Path, source: Path | None = None) -> None:
        """Makes an existing path part of the list, whatever it is, by the given name and by its real one."""
        real = path.resolve()
        if real.exists():
            for name in (real, Path(os.path.normpath(path))):
                self.mounts[name] = (kind, source or real)

    def show(self, path: Path) -> None:
        """Shows a path that a command, a variable or the user names, unless it holds more than that."""
        with suppress(OSError, ValueError):  # a word of a command may be too long for a path, or hold a NUL
            if self.leads_out(path) and not is_too_much(path.resolve(), self.home):
                self.mount("--ro-bind", path)

    def leads_out(self, path: Path) -> bool:
        """Whether a path may lead to others: an earlier job may have replaced a folder of its own by a link."""
        path = Path(os.path.normpath(path))
        hidden = [folder for folder in self.hidden if path.is_relative_to(folder)]
        for root in self.writable:
            if path.is_relative_to(root) and not any(folder.is_relative_to(root) for folder in hidden):
                return any((folder / "pyvenv.cfg").exists() for folder in (path, *path.parents[:2]))  # read-only
        return True

    def show_programs(self, folder: Path) -> None:
        """Shows a folder of programs and, next to a `bin`, the libraries of its environment."""
        self.show(folder)
        if folder.name not in ("bin", "shims"):
            return
        with suppress(OSError):  # of another user
            for path in find_parts(folder.parent, self.home):
                self.show(path)

    def show_program(self, path: Path) -> None:
        """Shows a program by each of its names, and the interpreter of a script."""
        self.show_programs(path.parent)
        while path.is_symlink() and self.leads_out(path):
            path = path.parent / path.readlink()
            self.show_programs(path.parent)
        with suppress(OSError), path.open("rb") as file:
            words = file.readline(512).split()
            if self.leads_out(path) and words and words[0].startswith(b"#!"):
                self.show_programs(Path(os.fsdecode(words[0][2:])).parent)

    def render(self) -> Iterator[str]:
        """The options of bwrap, from the root downwards."""
        empty = ["/"]
        for path, (kind, source) in sorted(self.mounts.items()):
            above = next((self.mounts[parent] for parent in path.parents if parent in self.mounts), None)
            is_seen = above is not None and above[0] != "--tmpfs" and path.is_relative_to(above[1])
            if kind == "--tmpfs":
                yield from ("--tmpfs" if is_seen else "--dir", str(path))
                empty += [str(path)] * is_seen
            elif is_seen and path.resolve() != path:
                continue  # a link in what is seen leads there
            elif not (is_seen and above and above[0] == kind == "--ro-bind" and source == path):
                yield from (kind, str(source), str(path))
        for name in empty:  # after all mounts in them
            yield from ("--remount-ro", name)


def is_too_much(real: Path, home: Path) -> bool:
    """Whether a path holds the home folder, or is a part of the system that is shown entry by entry."""
    if home.resolve().is_relative_to(real) or any(Path(name).is_relative_to(real) for name in TEMPORARY):
        return True
    return any(real.is_relative_to(name) for name in ("/etc", "/dev", "/proc", "/run"))


def render_system() -> Iterator[str]:
    """The processes of the job and the devices that it may use."""
    yield from ("--proc", "/proc", "--dev", "/dev")
    for name in _SEEN["controls"]:
        yield from ("--ro-bind-try", f"/proc/{name}", f"/proc/{name}")
    for path in sorted(path for pattern in _SEEN["accelerators"] for path in Path("/dev").glob(pattern)):
        yield from ("--dev-bind", str(path), str(path))


def show_system(seen: Visible, temporary: Path) -> None:
    """Shows programs, libraries and settings of the system, and temporary folders of the job's own."""
    for folder, names in _SEEN["shown"].items():
        for name in names:
            seen.mount("--ro-bind", Path(folder, name))
    for path in (seen.home, Path("/run")):
        seen.mount("--tmpfs", path)
    for name in TEMPORARY:
        seen.mount("--bind", Path(name), temporary / "tmp")
    seen.show(seen.home / ".local" / "lib")  # packages of `pip install --user`


def show_named(seen: Visible, words: Sequence[str], environ: Mapping[str, str], cwd: Path) -> None:
    """Shows the program of a command, and the paths that its words and variables name."""
    for name in _SEEN["variables"]:
        show: Callable[[Path], None] = seen.show
        if name == "PATH":
            show = seen.show_programs
        for text in dict.fromkeys(filter(os.path.isabs, environ.get(name, "").split(os.pathsep))):
            show(Path(text))
    program = shutil.which(str(cwd / words[0]) if "/" in words[0] else words[0], path=environ.get("PATH"))
    if program is not None:
        seen.show_program(Path(program))
    for word in words[1:]:
        path = cwd / word.rpartition("=")[2]
        if path.suffix in _SCRIPTS:  # it imports what stands next to it
            seen.show(path.parent)
        seen.show(path)


def show_repository(seen: Visible, cwd: Path) -> None:
    """Shows the work tree that a working directory is in, and the repository of a linked one."""
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


def show_caches(seen: Visible, own: Path) -> None:
    """The user's caches, read-only, in a folder of the job's own: programs make caches, which are gone with the job."""
    with suppress(OSError):
        (seen.home / ".cache").mkdir(mode=0o700, exist_ok=True)
        folder = (seen.home / ".cache").resolve()
        entries = sorted(folder.iterdir())
        # a link to a folder that holds more than caches, such as /, would bring back paths that are hidden from the job
        is_hidden = is_too_much(folder, seen.home) or any(folder.is_relative_to(name) for name in TEMPORARY)
        if is_hidden:
            return
        seen.mount("--bind", seen.home / ".cache", own)
        if len(entries) > _CACHES_MAX:
            return
        for entry in entries:
            seen.show(entry)
        for name in _SEEN["passwords"]:
            seen.mount("--ro-bind", folder / name, Path("/dev/null"))


@cache
def find_parts(prefix: Path, home: Path) -> tuple[Path, ...]:
    """The folders that the programs in `bin` of a prefix need: itself, its base Python, and editable projects."""
    parts: list[Path] = []
    if is_too_much(prefix.resolve(), home) or prefix.resolve() == home.resolve() / ".local":
        if prefix != Path("/"):
            parts = [prefix / "lib"]  # ~/.local/share holds keys
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
        yield from (packages / line for line in path.read_text(errors="replace").splitlines() if "/" in line)
    for path in packages.glob("*.dist-info/direct_url.json"):
        with suppress(OSError, ValueError, KeyError, TypeError):
            origin = json.loads(path.read_text(encoding="utf-8"))
            if origin["dir_info"].get("editable"):
                yield Path(unquote(urlsplit(origin["url"]).path))


@cache
def find_trusted(cwd: Path) -> tuple[Path, ...]:
    """What a later command runs or trusts in a working directory: environments, repositories, our own code.

    Deeper ones are not looked for. The first job of a process decides, before others have changed anything.
    """
    places = [Path(nightjar_ci.__file__).parent, Path(sys.prefix)]
    for name, folders, files in os.walk(cwd):
        folder = Path(name)
        places += [folder] * ("pyvenv.cfg" in files) + [folder / ".git"] * (".git" in (*folders, *files))
        if len(folder.parts) >= len(cwd.parts) + _DEPTH:
            folders.clear()
    return tuple(path for path in places if path != cwd and path.resolve().is_relative_to(cwd))
