"""Git worktrees: a commit of a repository checked out into a folder of its own, submodules included.

In: a repository and a commit. Out: the folder. One that is there and whole is used again.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from nightjar_ci.errors import EnvironmentFailedError
from nightjar_ci.untrusted.git import git_command, git_environment, repository_command
from nightjar_ci.web.http import hide_passwords

_TIMEOUT_S = 1800.0  # of a checkout with large submodules


def find_repository(folder: Path) -> Path:
    """The top folder of the repository that a folder is in.

    Raises:
        EnvironmentFailedError: it is in none.
    """
    return Path(_git(folder, "rev-parse", "--show-toplevel").strip())


def has_commit(folder: Path, sha: str) -> bool:
    """Whether the repository of a folder holds a commit; a shallow clone may not."""
    try:
        _git(folder, "cat-file", "-e", "--end-of-options", f"{sha}^{{commit}}")
    except EnvironmentFailedError:
        return False
    return True


def add_worktree(repository: Path, sha: str, folder: Path) -> None:
    """Checks a commit out into a folder of its own; one that is there and whole is used again.

    Raises:
        EnvironmentFailedError: git cannot do it.
    """
    if folder.is_dir():
        try:
            if _git(folder, "rev-parse", "HEAD").strip() == sha and find_repository(folder) == folder.resolve():
                _git(folder, "checkout", "--quiet", "--force", "--detach", sha)
                _update_submodules(folder)
                return
        except EnvironmentFailedError:
            pass  # half made: made anew
    folder.parent.mkdir(parents=True, exist_ok=True)
    _change(repository, "prune")
    _change(repository, "add", "--quiet", "--force", "--force", "--detach", str(folder), sha)
    _update_submodules(folder)


def remove_worktree(folder: Path) -> None:
    """Removes a worktree.

    Raises:
        EnvironmentFailedError: git cannot do it.
    """
    repository = Path(folder, _git(folder, "rev-parse", "--git-common-dir").strip())
    _change(repository, "remove", "--force", "--force", str(folder))


def _update_submodules(tree: Path) -> None:
    """Checks out the submodules as the commit records them; their addresses may have moved since another commit."""
    if (tree / ".gitmodules").is_file():
        _git(tree, "submodule", "--quiet", "sync", "--recursive")
        _git(tree, "submodule", "--quiet", "update", "--init", "--recursive", "--force")


def _git(folder: Path, *arguments: str) -> str:
    return _run(git_command(folder, *arguments), f"git {arguments[0]} in {folder}")


def _change(repository: Path, *arguments: str) -> None:
    """Changes the worktrees of a repository, which may be a bare clone."""
    _run(repository_command(repository, "worktree", *arguments), f"git worktree in {repository}")


def _run(command: list[str], what: str) -> str:
    environ = git_environment(os.environ)
    try:
        done = subprocess.run(command, capture_output=True, check=True, timeout=_TIMEOUT_S, env=environ)
    except subprocess.CalledProcessError as error:
        said = hide_passwords(os.fsdecode(error.stderr).strip())[-1000:]
        raise EnvironmentFailedError(f"{what} ended with {error.returncode}: {said}") from None
    except (OSError, subprocess.SubprocessError) as error:
        raise EnvironmentFailedError(f"{what}: {error}.") from None
    return os.fsdecode(done.stdout)
