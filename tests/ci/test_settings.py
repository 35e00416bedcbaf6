"""The folder of Nightjar's state."""

import subprocess
from pathlib import Path

from nightjar_ci.settings import keep_out_of_git, read_settings


def test_git_does_not_see_the_usual_state_folder(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    settings = read_settings({"NIGHTJAR_STATE_DIR": str(tmp_path / ".nightjar")})
    for _ in range(2):
        keep_out_of_git(settings)
    (tmp_path / ".nightjar" / "store.sqlite").touch()
    status = subprocess.run(["git", "-C", str(tmp_path), "status", "--porcelain"], capture_output=True, check=True)
    assert status.stdout == b""


def test_a_folder_of_the_users_choice_gets_no_file(tmp_path: Path) -> None:
    keep_out_of_git(read_settings({"NIGHTJAR_STATE_DIR": str(tmp_path / "state")}))
    assert not (tmp_path / "state").exists()
