"""Commands of git in a repository that somebody else may have made.

In: a folder and words. Out: a command line and variables with which git starts no hook and no monitor of files that the
repository names, and takes no folder of a commit for a repository. Programs that its configuration names for file
contents (filters) and servers still run: a checkout without Git LFS would not be the commit.

Source: https://git-scm.com/docs/git-config, core.fsmonitor, core.hooksPath, log.showSignature, safe.bareRepository
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

_OPTIONS = ("core.fsmonitor=false", "core.hooksPath=/dev/null", "log.showSignature=false")
_OF_HOOKS = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_OBJECT_DIRECTORY")  # their tree, not ours


def git_command(folder: Path, *arguments: str) -> list[str]:
    """A command in a work tree; a bare repository is none, since a commit can hold one.

    >>> git_command(Path("."), "status")[-3:]
    ['-C', '.', 'status']
    """
    return ["git", *_render_options("safe.bareRepository=explicit"), "-C", str(folder), *arguments]


def repository_command(repository: Path, *arguments: str) -> list[str]:
    """A command in the top folder of a work tree, in its `.git`, or in a bare clone of ours."""
    if (repository / ".git").exists():
        return git_command(repository, *arguments)
    return ["git", *_render_options(), "--git-dir", str(repository), *arguments]


def git_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables without the ones that name the repository of a hook that runs us."""
    return {name: value for name, value in environ.items() if name not in _OF_HOOKS}


def _render_options(*more: str) -> list[str]:
    return [word for option in (*_OPTIONS, *more) for word in ("-c", option)]
