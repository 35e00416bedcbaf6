"""Folders and archives of this machine that packages are installed from, identified by their contents.

In: a path. Out: a digest of its contents. The contents of a folder are the files that git tracks or would add; outside
git all files except caches and outputs: builds, virtual environments, Nightjar's own.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nightjar_ci.environments.git_tree import CACHES, ask_git, list_files

_BUILT = ("build", "dist")  # next to pyproject.toml; deeper they may be packages
_LARGEST_BYTES = 1_000_000
_MARKS = ("pyvenv.cfg", "CACHEDIR.TAG")  # of a virtual environment, of a cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The source that a package is installed from.

    Attributes:
        path: absolute; a folder, a wheel or a source archive.
        editable: the environment imports the folder itself.
        digest: SHA-256 of the contents.
        describes: commit and tags of a project whose version may be derived from them.
    """

    path: Path
    editable: bool
    digest: str
    describes: str | None = None


def read_source(path: Path, *, editable: bool = False, outputs: Sequence[Path] = ()) -> Source:
    """The source of a package as it is now.

    Args:
        outputs: folders of outputs, which do not count as contents.
    """
    if not path.is_dir():
        return Source(path=path, editable=editable, digest=_digest_file(path))
    digest = hashlib.sha256()
    root = path.resolve()
    for name in sorted(set(_list_contents(root, tuple(folder.resolve() for folder in outputs)))):
        _add_entry(digest, root, name)
    describes, project = None, read_project(path).get("project")
    if not isinstance(project, dict) or "version" not in project:  # it may be derived from git
        describes = ask_git(path, "describe", "--tags", "--always", "--long", "--abbrev=40")
    return Source(path=path, editable=editable, digest=digest.hexdigest(), describes=describes)


def read_project(folder: Path) -> dict[str, Any]:
    """The `pyproject.toml` of a folder; empty if there is none, or it cannot be read."""
    try:
        return tomllib.loads(read_text(folder / "pyproject.toml"))
    except ValueError:
        return {}


def read_text(path: Path) -> str:
    """A file's text; empty if there is none, or it is too large or not readable."""
    try:
        if not path.is_file() or path.stat().st_size > _LARGEST_BYTES:  # reading a FIFO waits for ever
            return ""
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def get_table(document: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    """A table of a document, or a table in one; empty if it is missing, or something else has its name.

    >>> get_table({"tool": {"uv": {"package": False}}}, "tool", "uv"), get_table({"tool": 1}, "tool", "uv")
    ({'package': False}, {})
    """
    for name in names:
        value = document.get(name)
        if not isinstance(value, dict):
            return {}
        document = value
    return document


def get_list(table: Mapping[str, Any], name: str) -> list[Any]:
    """A list of a table; empty if it is missing, or something else has its name."""
    value = table.get(name)
    if isinstance(value, list):
        return value
    return []


def _list_contents(folder: Path, outputs: tuple[Path, ...]) -> Iterator[str]:
    listed = list_files(folder)
    if listed is None:
        yield from _walk(folder, "", outputs)
        return
    tracked, others = map(set, listed)
    for name in (*tracked, *others):
        path = folder / name
        parts = (Path(name), *Path(name).parents)
        if name not in tracked and any(_is_left_out(folder, part, outputs) for part in parts if part.name):
            continue
        if path.is_dir() and not path.is_symlink():  # a submodule, or another repository
            yield from (f"{name.rstrip('/')}/{part}" for part in _list_contents(path, outputs))
        elif os.path.lexists(path):
            yield name


def _walk(root: Path, below: str, outputs: tuple[Path, ...]) -> Iterator[str]:
    with os.scandir(root / below) as entries:
        for entry in entries:
            name = f"{below}{entry.name}"
            if _is_left_out(root, Path(name), outputs):
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from _walk(root, f"{name}/", outputs)
            else:
                yield name


def _is_left_out(root: Path, name: Path, outputs: tuple[Path, ...]) -> bool:
    path = root / name
    if name.name in CACHES or name.suffix in (".pyc", ".egg-info") or path in outputs:
        return True
    if path.is_symlink() or not path.is_dir():
        return False
    is_built = str(name) in _BUILT and not (path / "__init__.py").exists()
    is_night = (path / "night.json").is_file() and (path / "jobs").is_dir()
    return is_built or is_night or any((path / mark).is_file() for mark in _MARKS)


def _add_entry(digest: hashlib._Hash, root: Path, name: str) -> None:
    """Adds one file to a digest; a link also adds its target, since a build follows it."""
    path = root / name
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        kind, contents = "link", str(path.readlink())
        if path.is_file():
            contents += f" {_digest_file(path)}"
        elif path.is_dir() and not path.resolve().is_relative_to(root):
            contents += _describe_linked(path.resolve(), root)
    elif stat.S_ISREG(status.st_mode) and not _is_our_output(status):
        kind, contents = "program" if status.st_mode & stat.S_IXUSR else "file", _digest_file(path)
    else:
        return  # a socket or a pipe: no build reads it
    digest.update(f"{kind} {name}\0{contents}\0".encode(errors="surrogateescape"))


def _is_our_output(status: os.stat_result) -> bool:
    """Whether this program's stdout or stderr is redirected into a file, which so grows while it runs."""
    with suppress(OSError):
        return any(os.path.samestat(os.fstat(number), status) for number in (1, 2))
    return False


def _describe_linked(folder: Path, root: Path) -> str:
    """The files of a folder outside the root, by size and time: it may be a data set, too large to read."""
    states = ((name, (folder / name).lstat()) for name in sorted(_walk(folder, "", (root,))))
    return "".join(f"\n{name} {state.st_size} {state.st_mtime_ns}" for name, state in states)


def _digest_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
