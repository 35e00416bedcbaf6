"""Environments of another commit: `commit:SHA`, or `commit:SHA:ENVIRONMENT`.

In: a commit of the repository of the working directory, and an environment. Out: that environment, entered in a
worktree of the commit. Parts of the environment in the repository come from the worktree: packages installed from its
folders, a lock, a project.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from nightjar_ci.environments.local_requirements import parse_local
from nightjar_ci.environments.uv import split_requirements
from nightjar_ci.environments.worktree import add_worktree, remove_worktree
from nightjar_ci.errors import EnvironmentFailedError
from nightjar_ci.settings import Settings

_locks: dict[Path, int] = {}  # of the worktrees that this process uses: others leave them alone


def parse_commit(text: str) -> tuple[str, str]:
    """The commit and the environment of `SHA[:ENVIRONMENT]`.

    >>> parse_commit("0a1b2c3d:uv:jax==0.10.1"), parse_commit("0a1b2c3d")
    (('0a1b2c3d', 'uv:jax==0.10.1'), ('0a1b2c3d', 'current'))
    """
    sha, _, environment = text.partition(":")
    if not re.fullmatch(r"[0-9a-f]{7,64}", sha):
        raise ValueError(f"commit:{text}: expected commit:SHA[:ENVIRONMENT], with 7 hexadecimal digits or more")
    if environment.startswith("commit:"):
        raise ValueError(f"commit:{text}: the environment of a commit is current, uv:..., project:... or image:...")
    return sha, environment or "current"


def move_folders(
    folders: Mapping[str, tuple[Path, bool]], repository: Path, tree: Path
) -> dict[str, tuple[Path, bool]]:
    """Packages from folders, those in a repository from its worktree."""
    moved: dict[str, tuple[Path, bool]] = {}
    for name, (folder, editable) in folders.items():
        if folder.resolve().is_relative_to(repository.resolve()):
            folder = tree / folder.resolve().relative_to(repository.resolve())
            if not folder.is_dir():
                raise EnvironmentFailedError(f"{name} is installed from {folder.name}, which the commit does not have.")
        moved[name] = folder, editable
    return moved


def move_requirements(text: str, repository: Path, tree: Path) -> str:
    """The requirements of a `uv:` environment with a repository's lock, folders and files from its worktree."""

    def move(path: Path) -> Path | None:
        if not path.is_relative_to(repository.resolve()):
            return None
        moved = tree / path.relative_to(repository.resolve())
        if not moved.exists():
            raise EnvironmentFailedError(f"uv:{text}: the commit does not have {moved.relative_to(tree)}.")
        return moved

    parts = []
    for part in split_requirements(text):
        if part.endswith(".txt"):
            part = str(move(Path(part).resolve()) or part)
        elif (local := parse_local(part)) is not None and (moved := move(local.path.resolve())) is not None:
            local.requirement.url = moved.as_uri()
            part = local.render()
        parts.append(part)
    return ",".join(parts)


def check_out(repository: Path, sha: str, tree: Path) -> None:
    """Makes the worktree, which stays until `remove_worktrees` of the last process that uses it."""
    tree.parent.mkdir(parents=True, exist_ok=True)
    if tree not in _locks:
        _locks[tree] = _open_lock(tree)
    try:
        fcntl.flock(_locks[tree], fcntl.LOCK_EX | fcntl.LOCK_NB)
        add_worktree(repository, sha, tree)
    except BlockingIOError:  # another process makes or uses it
        pass
    finally:
        fcntl.flock(_locks[tree], fcntl.LOCK_SH)


def remove_worktrees(settings: Settings) -> None:
    for tree in [path for path in settings.worktrees_dir.glob("*") if path.suffix != ".lock"]:
        lock = _locks.pop(tree) if tree in _locks else _open_lock(tree)
        with suppress(OSError, EnvironmentFailedError):  # another process uses it, or the file system has no locks
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove_worktree(tree)
        os.close(lock)


def _open_lock(tree: Path) -> int:
    return os.open(tree.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
