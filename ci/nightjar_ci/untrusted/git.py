"""Commands of git in a repository that somebody else may have made.

In: a folder and words. Out: a command line and variables with which git starts no hook and no monitor of files that the
repository names, and takes no folder of a commit for a repository. `status`, which reads files that a job may have
left, starts no program that the repository names for file contents (filters), looks into no submodule and fetches
nothing. A checkout runs filters: without Git LFS it would not be the commit.

Source: https://git-scm.com/docs/git-config, core.fsmonitor, core.hooksPath, filter, log.showSignature, protocol.allow,
safe.bareRepository
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

_OPTIONS = (
    *("core.fsmonitor=false", "core.hooksPath=/dev/null", "log.showSignature=false"),
    *("color.ui=false", "i18n.logOutputEncoding=UTF-8"),  # what git prints is read
)
_PROTOCOLS = ("file", "git", "http", "https", "ssh", "ext")  # by which a partial clone fetches what is missing
_USERS = ("system", "global", "command")  # whose configuration it is
_TIMEOUT_S = 60.0
_OF_HOOKS = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_OBJECT_DIRECTORY")  # their tree, not ours


def git_command(folder: Path, *arguments: str) -> list[str]:
    """A command in a work tree; a bare repository is none, since a commit can hold one.

    >>> git_command(Path("."), "log", "-1")[-4:]
    ['-C', '.', 'log', '-1']
    """
    options = ["safe.bareRepository=explicit"]
    if arguments[:1] == ("status",):
        arguments = ("status", "--ignore-submodules=dirty", *arguments[1:])
        options += [*(f"protocol.{name}.allow=never" for name in _PROTOCOLS), *_disable_filters(folder)]
    return ["git", *_render_options(*options), "-C", str(folder), *arguments]


def repository_command(repository: Path, *arguments: str) -> list[str]:
    """A command in the top folder of a work tree, in its `.git`, or in a bare clone of ours."""
    if (repository / ".git").exists():
        return git_command(repository, *arguments)
    return ["git", *_render_options(), "--git-dir", str(repository), *arguments]


def git_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables without the ones that name the repository of a hook that runs us."""
    return {name: value for name, value in environ.items() if name not in _OF_HOOKS}


def _disable_filters(folder: Path) -> list[str]:
    """The options that take the programs from the filters of a repository; the user's own, such as Git LFS, stay."""
    listing = ("config", "--includes", "--show-scope", "--name-only", "-z", "--get-regexp", r"^filter\.")
    command = ["git", *_render_options("safe.bareRepository=explicit"), "-C", str(folder), *listing]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="surrogateescape", timeout=_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError):
        return []  # the command itself will fail, too
    words = done.stdout.split("\0")
    named = zip(words[::2], words[1::2], strict=False)
    keys = {name.rpartition(".")[0] for scope, name in named if scope not in _USERS}
    if any("=" in key for key in keys):
        return ["core.bare=="]  # no option can name it: the command fails
    return [f"{key}.{part}" for key in sorted(keys) for part in ("clean=", "smudge=", "process=", "required=false")]


def _render_options(*more: str) -> list[str]:
    return [word for option in (*_OPTIONS, *more) for word in ("-c", option)]
