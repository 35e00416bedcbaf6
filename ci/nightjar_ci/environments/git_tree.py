"""Git work trees: their commit, whether they have changes, and their files.

In: a folder. Out: git's answer; None if the folder is not in a work tree, git is missing, or git does not trust it.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath

from nightjar_ci.errors import EnvironmentFailedError
from nightjar_ci.formats.run_record import Git
from nightjar_ci.untrusted.git import git_command, git_environment
from nightjar_ci.web.http import hide_passwords

# Caches that Python and its tools leave next to source files: neither changes of a work tree nor contents of a folder.
CACHES = frozenset({
    "__pycache__", ".git", ".hg", ".svn", ".venv", ".nox", ".tox", ".eggs", ".nightjar", ".mypy_cache", ".pytest_cache",
    ".ruff_cache", ".hypothesis", ".ipynb_checkpoints", "node_modules",
})  # fmt: skip
_TIMEOUT_S = 1800.0  # of a checkout with large submodules


def read_git(folder: Path, paths: tuple[str, ...] = ()) -> Git | None:
    """The commit of a work tree.

    Args:
        paths: relative to the folder; only changes below them make it dirty. Default: the whole work tree.
    """
    sha = ask_git(folder, "rev-parse", "HEAD")
    status = ask_git(folder, "status", "--porcelain", "-z", "--", *paths)
    if sha is None or status is None:
        return None
    entries = filter(None, status.split("\0"))  # a cache that a run has left is no change
    dirty = any(not entry.startswith("?? ") or CACHES.isdisjoint(PurePath(entry[3:]).parts) for entry in entries)
    return Git(sha=sha.strip(), dirty=dirty)


def list_files(folder: Path) -> tuple[list[str], list[str]] | None:
    """The files of a folder, relative to it: tracked files, and files that are neither tracked nor ignored.

    A submodule is one entry of the first list, another repository one entry of the second: its folder.

    Returns:
        Both lists, or None if the folder is not in a work tree, or ignored as a whole.
    """
    tracked = ask_git(folder, "ls-files", "-z", "--cached")
    others = ask_git(folder, "ls-files", "-z", "--others", "--exclude-standard")
    if tracked is None or others is None:
        return None
    if not tracked and ask_git(folder, "check-ignore", "--quiet", ".") is not None:
        return None
    # git lists the folder of a submodule that is not checked out as `./`
    return [name for name in tracked.split("\0") if name not in ("", "./")], [
        name for name in others.split("\0") if name
    ]


def run_git(command: Sequence[str], what: str, environ: Mapping[str, str] | None = None) -> str:
    """The stdout of a command of git.

    Args:
        environ: its variables; default: this process's.
    """
    environ = git_environment(os.environ if environ is None else environ)
    try:
        done = subprocess.run(command, capture_output=True, check=True, timeout=_TIMEOUT_S, env=environ)
    except subprocess.CalledProcessError as error:
        said = hide_passwords(os.fsdecode(error.stderr).strip())[-1000:]
        raise EnvironmentFailedError(f"{what} ended with {error.returncode}: {said}") from None
    except (OSError, subprocess.SubprocessError) as error:
        raise EnvironmentFailedError(f"{what}: {error}.") from None
    return os.fsdecode(done.stdout)


def ask_git(folder: Path, *arguments: str) -> str | None:
    """The stdout of git, or None if it fails."""
    try:
        return run_git(git_command(folder, *arguments), f"git {arguments[0]}")
    except EnvironmentFailedError:
        return None
