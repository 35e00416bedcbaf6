"""Worktrees of commits: with the submodules that a commit records, and made anew where one was left half made."""

from pathlib import Path

import pytest

from nightjar_ci.environments.git_tree import list_files
from nightjar_ci.environments.worktree import add_worktree, remove_worktree
from nightjar_ci.errors import EnvironmentFailedError
from tests.ci.bisect.ladders.test_commits import commit, repository, run_git

__all__ = ["repository"]


@pytest.fixture
def outer(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "protocol.file.allow")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "always")
    folder = tmp_path / "outer"
    folder.mkdir()
    run_git(folder, "init", "-q", "-b", "main")
    run_git(folder, "submodule", "--quiet", "add", str(repository), "inner")
    commit(folder, "1")
    return folder


def test_a_worktree_that_lacks_submodules_is_made_again(outer: Path, repository: Path, tmp_path: Path) -> None:
    sha, tree = run_git(outer, "rev-parse", "main"), tmp_path / "tree"
    away = repository.rename(tmp_path / "away")
    for _ in range(2):  # the second time the reason is still this one, and not that a folder is in the way
        with pytest.raises(EnvironmentFailedError, match="git submodule"):
            add_worktree(outer, sha, tree)
    away.rename(repository)
    add_worktree(outer, sha, tree)
    assert (tree / "inner" / "value").read_text() == "3"


def test_a_submodule_that_is_not_checked_out_has_no_files(outer: Path, tmp_path: Path) -> None:
    run_git(tmp_path, "clone", "--quiet", str(outer), "clone")
    assert list_files(tmp_path / "clone" / "inner") == ([], [])


def test_addresses_of_submodules_are_the_users_and_none_is_left_there(
    outer: Path, repository: Path, tmp_path: Path
) -> None:
    sha, config = run_git(outer, "rev-parse", "main"), outer / ".git/config"
    run_git(outer, "config", "submodule.inner.url", str(tmp_path / "mirror"))
    mirror, before = repository.rename(tmp_path / "mirror"), config.read_text()
    add_worktree(outer, sha, tmp_path / "tree")
    assert config.read_text() == before
    mirror.rename(repository)
    run_git(outer, "config", "--remove-section", "submodule.inner")
    before = config.read_text()
    for _ in range(2):
        add_worktree(outer, sha, tmp_path / "tree of nobody's")
        assert (tmp_path / "tree of nobody's" / "inner" / "value").read_text() == "3"
    assert config.read_text() == before


def test_a_worktree_behind_a_link_is_not_removed(repository: Path, tmp_path: Path) -> None:
    add_worktree(repository, run_git(repository, "rev-parse", "first"), tmp_path / "mine")
    (tmp_path / "tree").symlink_to(tmp_path / "mine")
    remove_worktree(tmp_path / "tree")
    assert (tmp_path / "mine" / "value").exists()
    remove_worktree(tmp_path / "mine")
    assert not (tmp_path / "mine").exists()


def test_a_commit_that_was_picked_stays_in_a_worktree_used_again(repository: Path, tmp_path: Path) -> None:
    sha, side = (run_git(repository, "rev-parse", name) for name in ("first", "side~1"))
    for _ in range(2):
        add_worktree(repository, sha, tmp_path / "tree", picks=[side])
        assert (tmp_path / "tree" / "side").read_text() == "x"
        assert run_git(tmp_path / "tree", "rev-parse", "HEAD") == sha


def test_a_pick_in_conflict_is_said_with_its_files(repository: Path, tmp_path: Path) -> None:
    sha, last = (run_git(repository, "rev-parse", name) for name in ("first", "main"))
    for _ in range(2):
        with pytest.raises(EnvironmentFailedError, match=f"picking {last[:12]} onto it: conflict in value"):
            add_worktree(repository, sha, tmp_path / "tree", picks=[last])
