"""Work trees of git: what counts as a change."""

from pathlib import Path

from nightjar_ci.environments.git_tree import read_git
from tests.ci.bisect.ladders.test_commits import repository, run_git

__all__ = ["repository"]


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
