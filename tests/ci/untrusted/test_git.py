"""Commands of git in foreign repositories; what hostile ones try is in tests/hostile."""

from pathlib import Path

from nightjar_ci.untrusted.git import git_command, git_environment, repository_command


def test_a_repository_without_a_work_tree_is_named(tmp_path: Path) -> None:
    assert repository_command(tmp_path, "log")[-3:] == ["--git-dir", str(tmp_path), "log"]
    (tmp_path / ".git").mkdir()
    assert repository_command(tmp_path, "log") == git_command(tmp_path, "log")


def test_the_repository_of_a_hook_is_not_ours() -> None:
    assert git_environment({"GIT_DIR": "x", "GIT_SSH_COMMAND": "y", "PATH": "z"}) == {
        "GIT_SSH_COMMAND": "y",
        "PATH": "z",
    }
