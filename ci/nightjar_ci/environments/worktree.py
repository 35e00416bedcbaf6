"""Git worktrees: a commit of a repository checked out into a separate folder, submodules included.

In: a repository and a commit. Out: the folder. A complete one is reused.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Sequence
from pathlib import Path

from nightjar_ci.environments.git_tree import ask_git, run_git
from nightjar_ci.errors import EnvironmentFailedError
from nightjar_ci.untrusted.git import git_command, repository_command

_MOST_CONFLICTS = 5  # files that a message names


def find_repository(folder: Path) -> Path:
    return Path(_git(folder, "rev-parse", "--show-toplevel").strip())


def has_commit(folder: Path, sha: str) -> bool:
    """Whether the repository of a folder holds a commit; a shallow clone may not."""
    return ask_git(folder, "cat-file", "-e", "--end-of-options", f"{sha}^{{commit}}") is not None


def add_worktree(
    repository: Path, sha: str, folder: Path, *, picks: Sequence[str] = (), nested: Collection[str] = ()
) -> None:
    """Checks a commit out into a separate folder; a complete one is reused.

    Args:
        picks: commits that are picked onto it, without making commits of them.
        nested: paths of submodules that are left alone: the caller checks them out.
    """
    if folder.is_dir():
        try:
            if _git(folder, "rev-parse", "HEAD").strip() == sha and find_repository(folder) == folder.resolve():
                _git(folder, "checkout", "--quiet", "--force", "--detach", sha)
                _pick(folder, picks)
                _update_submodules(folder, nested)
                return
        except EnvironmentFailedError:
            pass  # incomplete: make it again
        shutil.rmtree(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    _change(repository, "prune")
    _change(repository, "add", "--quiet", "--force", "--force", "--detach", str(folder), sha)
    _pick(folder, picks)
    _update_submodules(folder, nested)


def remove_worktree(folder: Path) -> None:
    if folder.is_symlink():  # a test put it there; git would remove what it leads to, which may be the user's
        return
    repository = Path(folder, _git(folder, "rev-parse", "--git-common-dir").strip())
    _change(repository, "remove", "--force", "--force", str(folder))


def _pick(tree: Path, picks: Sequence[str]) -> None:
    for pick in picks:
        try:
            _git(tree, "cherry-pick", "--no-commit", pick)
        except EnvironmentFailedError as error:
            conflicts = _git(tree, "diff", "--name-only", "--diff-filter=U").split("\n")
            if not any(conflicts):
                raise
            named = ", ".join(filter(None, conflicts[:_MOST_CONFLICTS]))
            problem = f"picking {pick[:12]} onto it: conflict in {named}."
            raise EnvironmentFailedError(problem, "name ends on one branch") from error


def _update_submodules(tree: Path, nested: Collection[str]) -> None:
    """Checks out the submodules as the commit records them, from the user's addresses, else from the commit's."""
    if not (tree / ".gitmodules").is_file():
        return
    paths = []
    if nested:
        listed = _git(tree, "config", "--file", ".gitmodules", "--get-regexp", r"^submodule\..*\.path$")
        paths = [path for path in (line.partition(" ")[2] for line in listed.splitlines()) if path not in nested]
        if not paths:
            return
    # `sync` and `--init` would write addresses into the config that the worktree shares with the user's clone.
    update = ("-c", "submodule.active=.", "submodule", "--quiet", "update", "--recursive", "--force", "--", *paths)
    run_git(git_command(tree, *update), f"git submodule in {tree}")


def _git(folder: Path, *arguments: str) -> str:
    return run_git(git_command(folder, *arguments), f"git {arguments[0]} in {folder}")


def _change(repository: Path, *arguments: str) -> None:
    run_git(repository_command(repository, "worktree", *arguments), f"git worktree in {repository}")
