"""Environments of another commit: entered in a worktree, with the repository's own packages from there."""

from fcntl import LOCK_SH, flock
from pathlib import Path
from typing import Any

import pytest

from nightjar_ci.environments import uv
from nightjar_ci.environments.commit import move_folders, move_requirements, parse_commit
from nightjar_ci.environments.git_tree import read_git
from nightjar_ci.environments.installed import Frozen, find_version
from nightjar_ci.environments.prepare import Environments, enter_tree, parse_environment, prepare
from nightjar_ci.environments.worktree import has_commit
from nightjar_ci.errors import EnvironmentFailedError
from nightjar_ci.settings import Settings
from tests.ci.bisect.ladders.test_commits import repository, run_git

__all__ = ["repository"]


@pytest.mark.parametrize(
    "text",
    ["commit:", "commit:main", "commit:--all", "commit:0a1b2c", "commit:0a1b2c3d:commit:0a1b2c3d", "commit:0a1b2c3d:x"],
)
def test_what_is_not_a_commit_or_an_environment_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="commit:"):
        parse_environment(text)


def test_a_commit_keeps_the_folder_of_its_caller(
    repository: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    (repository / "sub").mkdir()
    (repository / "sub" / "file").write_text("x")
    run_git(repository, "add", "-A")
    run_git(repository, "commit", "-q", "-m", "Sub")
    sha = run_git(repository, "rev-parse", "HEAD")
    run_git(repository, "rm", "-q", "-r", "sub")
    (repository / "sub").mkdir()
    monkeypatch.chdir(repository / "sub")
    made = prepare(f"commit:{sha}", settings)
    assert made.folder == settings.worktrees_dir / sha / "sub"
    assert (made.folder / "file").read_text() == "x"
    assert (made.name, made.kind) == (f"commit:{sha}", "current")
    assert prepare(f"commit:{sha}:image:a/b", settings).image == "a/b"
    with made.folder.parent.with_suffix(".lock").open() as other_process:
        flock(other_process, LOCK_SH)
        with Environments(settings):
            pass
        assert made.folder.is_dir()
    with Environments(settings) as environments:
        assert environments.get(f"commit:{sha}") == made  # of an earlier call, which no process uses
    assert not made.folder.parent.exists()
    assert run_git(repository, "status", "--porcelain", "--untracked-files=no").startswith("D")


def test_an_absent_commit_is_an_error(repository: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(repository)
    assert not has_commit(repository, "f" * 40)
    assert has_commit(repository, run_git(repository, "rev-parse", "first"))
    with pytest.raises(EnvironmentFailedError, match="worktree"):
        prepare(f"commit:{'f' * 40}", settings)
    assert parse_commit("f" * 40) == ("f" * 40, "current")


def test_packages_are_those_of_the_commit(repository: Path, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "lib").mkdir(parents=True)
    folders = {"lib": (repository / "lib", True), "other": (tmp_path / "other", False)}
    assert move_folders(folders, repository, tree) == {
        "lib": (tree / "lib", True),
        "other": (tmp_path / "other", False),
    }
    (tree / "lib").rmdir()
    with pytest.raises(EnvironmentFailedError, match="which the commit does not have"):
        move_folders(folders, repository, tree)


def test_an_environment_of_requirements_has_the_packages_of_the_commit(
    repository: Path, tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uv, "make_environment", lambda *_, folders: folders)
    monkeypatch.setattr("nightjar_ci.environments.prepare.enter_made", lambda name, made: made)
    (tmp_path / "lib").mkdir()
    frozen = Frozen(pins={}, folders={"lib": (repository / "lib", True)})
    made: Any = enter_tree("name", "uv:numpy", repository, tmp_path, settings, current=lambda: frozen)
    assert made == {"lib": (tmp_path / "lib", True)}


def test_a_lock_folders_and_files_of_the_repository_are_those_of_the_commit(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(repository)
    tree, other = tmp_path / "tree", tmp_path / "other"
    for folder in (repository / "lib", tree / "lib", other):
        folder.mkdir(parents=True)
        (folder / "pyproject.toml").write_text('[project]\nname = "lib"\nversion = "1"\n')
    (tree / "a.txt").touch()
    assert move_requirements("a.txt,jax==0.10.1", repository, tree) == f"{tree}/a.txt,jax==0.10.1"
    assert move_requirements(f"{other}/a.txt", repository, tree) == f"{other}/a.txt"
    assert (
        move_requirements("-e ./lib[io],numpy<3,>=2", repository, tree)
        == f"-e lib[io] @ {tree.as_uri()}/lib,numpy<3,>=2"
    )
    assert move_requirements("./lib", repository, tree) == f"lib @ {tree.as_uri()}/lib"
    assert move_requirements(str(other), repository, tree) == str(other)
    with pytest.raises(EnvironmentFailedError, match=r"the commit does not have b\.txt"):
        move_requirements("b.txt", repository, tree)


def test_a_project_is_that_of_the_commit(repository: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    metadata = '[project]\nname = "lib"\nversion = "VERSION"\n[build-system]\nrequires = ["setuptools"]\n'
    (repository / "pyproject.toml").write_text(metadata.replace("VERSION", "1"))
    run_git(repository, "add", "-A")
    run_git(repository, "commit", "-q", "-m", "Project")
    sha = run_git(repository, "rev-parse", "HEAD")
    (repository / "pyproject.toml").write_text(metadata.replace("VERSION", "2"))
    monkeypatch.chdir(repository)
    made = prepare(f"commit:{sha}:project:.", settings)
    assert made.interpreter is not None
    assert find_version("lib", made.interpreter.path) == "1"
    assert made.folder == settings.worktrees_dir / sha


def test_what_a_run_of_the_tests_leaves_is_no_change(repository: Path) -> None:
    (repository / "tests").mkdir()
    (repository / "tests" / "test_a.py").touch()
    run_git(repository, "add", "-A")
    run_git(repository, "commit", "-q", "-m", "Tests")
    for left in ("__pycache__/a.pyc", "tests/__pycache__/test_a.pyc", ".pytest_cache/README.md", ".nightjar/file"):
        (repository / left).parent.mkdir(exist_ok=True)
        (repository / left).touch()
    git = read_git(repository)
    assert git is not None
    assert not git.dirty
    (repository / "tests" / "test_b.py").touch()
    git = read_git(repository)
    assert git is not None
    assert git.dirty
