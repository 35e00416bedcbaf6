"""Ladders of commits of one repository: first parents, merges, branches that diverged, commits picked onto others."""

import subprocess
from pathlib import Path

import pytest

from nightjar_ci.bisect.ladders.commits import (
    make_branch_ladder,
    make_commit_ladder,
    open_repository,
)
from nightjar_ci.errors import InputError
from tests.machine import asks


def run_git(folder: Path, *arguments: str) -> str:
    who = ("-c", "user.name=A", "-c", "user.email=a@example.invalid", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", *who, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def commit(folder: Path, text: str) -> str:
    (folder / "value").write_text(text)
    run_git(folder, "add", "-A")
    run_git(folder, "commit", "-q", "--allow-empty", "-m", f"Set {text}")
    return run_git(folder, "rev-parse", "HEAD")


@pytest.fixture
@asks("git")
def repository(tmp_path: Path) -> Path:
    """1 - 2 - merge of (x, y) - 3"""
    folder = tmp_path / "repository"
    folder.mkdir()
    run_git(folder, "init", "-q", "-b", "main")
    commit(folder, "1")
    run_git(folder, "tag", "first")
    run_git(folder, "switch", "-q", "-c", "side")
    (folder / "side").write_text("x")
    commit(folder, "1")
    (folder / "side").write_text("y")
    commit(folder, "1")
    run_git(folder, "switch", "-q", "main")
    commit(folder, "2")
    run_git(folder, "merge", "-q", "--no-ff", "-m", "Merge side", "side")
    run_git(folder, "tag", "merged")
    commit(folder, "3")
    return folder


def test_commits_are_those_of_the_first_parent(repository: Path) -> None:
    commit(repository, "Größe")
    run_git(repository, "config", "color.ui", "always")
    run_git(repository, "config", "i18n.logOutputEncoding", "ISO-8859-1")
    ladder = make_commit_ladder(open_repository(str(repository), Path()), "first", "main")
    names = ["Set 1", "Set 2", "Merge side", "Set 3", "Set Größe"]
    assert [rung.name.partition(" ")[2] for rung in ladder.rungs] == names
    assert [rung.note for rung in ladder.rungs] == [None, None, "merge", None, None]


def test_a_merge_opens_into_the_commits_of_its_branch(repository: Path) -> None:
    merge = run_git(repository, "rev-parse", "merged")
    ladder = make_branch_ladder(repository, merge)
    assert ladder is not None
    assert ladder.rungs[0].source == run_git(repository, "rev-parse", "first")
    assert ladder.rungs[-1].source == run_git(repository, "rev-parse", "side")
    assert len(ladder.rungs) == 3
    assert make_branch_ladder(repository, run_git(repository, "rev-parse", "main")) is None


def test_ends_on_two_branches_are_joined_over_where_they_part(repository: Path) -> None:
    ladder = make_commit_ladder(repository, "side", "merged~1")
    revisions = ("side", "side~1", "first", "merged~1")
    assert [rung.source for rung in ladder.rungs] == [run_git(repository, "rev-parse", name) for name in revisions]
    assert [(rung.note or "").partition(" ")[0] for rung in ladder.rungs] == ["", "without", "without", ""]
    assert run_git(repository, "rev-parse", "first")[:12] in ladder.notes[0]
    run_git(repository, "switch", "-q", "--orphan", "alone")
    commit(repository, "9")
    with pytest.raises(InputError, match="no common history"):
        make_commit_ladder(repository, "side", "alone")


def test_what_is_not_a_commit_is_refused(repository: Path) -> None:
    for revision in ("--output=x", "nonsense", "first:value"):
        with pytest.raises(InputError, match="is not a commit"):
            make_commit_ladder(repository, revision, "main")


def test_a_shallow_clone_is_said_to_be_one(repository: Path, tmp_path: Path) -> None:
    run_git(tmp_path, "clone", "--quiet", "--depth", "1", repository.as_uri(), "shallow")
    with pytest.raises(InputError) as refused:
        make_commit_ladder(tmp_path / "shallow", run_git(repository, "rev-parse", "first"), "main")
    assert "git fetch --unshallow" in str(refused.value.hint)


def test_a_repository_that_only_has_an_address_is_cloned_once(repository: Path, tmp_path: Path) -> None:
    clone = open_repository(repository.as_uri(), tmp_path / "cache")
    last = commit(repository, "4")
    assert open_repository(repository.as_uri(), tmp_path / "cache") == clone
    assert make_commit_ladder(clone, "first", last).rungs[-1].source == last
    with pytest.raises(InputError, match="no git repository"):
        open_repository(str(tmp_path), tmp_path)


@pytest.fixture
def rebased(repository: Path) -> Path:
    """A branch of two commits, `old`, and what became of it after a rebase onto main and one commit more, `new`."""
    run_git(repository, "switch", "-q", "-c", "old", "first")
    for name in ("patch", "fix"):
        (repository / name).write_text(name)
        run_git(repository, "add", "-A")
        run_git(repository, "commit", "-q", "-m", name)
    run_git(repository, "switch", "-q", "-c", "new", "main")
    run_git(repository, "cherry-pick", "old~1")
    (repository / "late").write_text("late")
    run_git(repository, "add", "-A")
    run_git(repository, "commit", "-q", "-m", "late")
    return repository


def test_a_patch_that_both_branches_carry_is_on_every_rung(rebased: Path) -> None:
    ladder = make_commit_ladder(rebased, "old", "new")
    patch = run_git(rebased, "rev-parse", "old~1")
    names = [rung.name.partition(" ")[2] for rung in ladder.rungs]
    assert names == ["fix", "patch", "Set 2", "Merge side", "Set 3", "late"]
    assert [rung.picks.get("", ()) for rung in ladder.rungs] == [(), (), (patch,), (patch,), (patch,), ()]
    assert [(rung.note or "").partition(" ")[0] for rung in ladder.rungs] == ["", "without", "", "merge", "", ""]
    assert "patch" in ladder.notes[1]


def test_a_patch_below_one_that_is_undone_stays(rebased: Path) -> None:
    run_git(rebased, "switch", "-q", "-c", "other", "first")
    run_git(rebased, "cherry-pick", "old")
    run_git(rebased, "cherry-pick", "old~1")
    ladder = make_commit_ladder(rebased, "other", "new")
    patch = run_git(rebased, "rev-parse", "other")
    assert ladder.rungs[1].source == run_git(rebased, "rev-parse", "first")
    assert ladder.rungs[1].picks == {"": (patch,)}
    assert (ladder.rungs[1].undone or "").endswith("fix")
