"""Git work trees: their commit, whether it was changed since, and the files in them.

In: a folder. Out: what git says of it; None where it lies in no work tree, git is missing, or git does not trust it.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from nightjar_ci.formats.run_record import Git

_TIMEOUT_S = 60.0
_OF_HOOKS = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_OBJECT_DIRECTORY")  # their tree, not ours


def read_git(folder: Path, paths: tuple[str, ...] = ()) -> Git | None:
    """The commit of a work tree.

    Args:
        folder: in the work tree.
        paths: relative to the folder; only changes below them make it dirty. All of the work tree where empty.

    Returns:
        The commit, or None where there is none.
    """
    sha, status = _ask(folder, "rev-parse", "HEAD"), _ask(folder, "status", "--porcelain", "--", *paths)
    return None if sha is None or status is None else Git(sha=sha.strip(), dirty=bool(status.strip()))


def describe_commit(folder: Path) -> str | None:
    """The commit and the tags that lead to it, as a version made from git has them; None where there is none."""
    described = _ask(folder, "describe", "--tags", "--always", "--long", "--abbrev=40")
    return None if described is None else described.strip()


def list_files(folder: Path) -> tuple[list[str], list[str]] | None:
    """The files of a folder, relative to it: those that git tracks, and those that it neither tracks nor ignores.

    A submodule or another repository in it is one entry of the first or the second list, its folder.

    Returns:
        Both lists, or None where git has no say over the folder: it is in no work tree, or ignored as a whole.
    """
    tracked = _ask(folder, "ls-files", "-z", "--cached")
    others = _ask(folder, "ls-files", "-z", "--others", "--exclude-standard")
    if tracked is None or others is None:
        return None
    if not tracked and _ask(folder, "check-ignore", "--quiet", ".") is not None:
        return None
    return [name for name in tracked.split("\0") if name], [name for name in others.split("\0") if name]


def _ask(folder: Path, *arguments: str) -> str | None:
    """What git prints, or None where it fails."""
    environ = {name: value for name, value in os.environ.items() if name not in _OF_HOOKS}
    command = ["git", "-C", str(folder), *arguments]
    try:
        ended = subprocess.run(command, capture_output=True, check=True, timeout=_TIMEOUT_S, env=environ)
    except (OSError, subprocess.SubprocessError):
        return None
    return os.fsdecode(ended.stdout)
