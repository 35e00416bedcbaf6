"""Tools that fail, named with command, exit status and the end of the output; and the folder of the state."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nightjar_ci.settings import keep_out_of_git, read_settings
from nightjar_ci.tools import TAIL_LINES, ToolError, run_captured, run_streamed

LINES = f"import sys; [print(f'line {{n}}.', file=sys.stderr) for n in range({TAIL_LINES + 5})]; sys.exit(7)"


def stream(argv: list[str]) -> list[str]:
    lines: list[str] = []
    run_streamed(argv, lines.append)
    return lines


@pytest.mark.parametrize("run", [run_captured, stream])
def test_of_a_tool_that_fails_the_last_lines_are_shown(run: Callable[[list[str]], object]) -> None:
    with pytest.raises(ToolError, match="ended with exit status 7; last output:") as caught:
        run([sys.executable, "-c", LINES])
    shown = [line.strip() for line in str(caught.value).splitlines() if line.startswith("  line ")]
    assert shown == [f"line {number}." for number in range(5, TAIL_LINES + 5)]


@pytest.mark.parametrize("run", [run_captured, stream])
def test_a_tool_that_fails_silently_or_is_not_there_is_named(run: Callable[[list[str]], object]) -> None:
    with pytest.raises(ToolError, match="exit status 3, without output"):
        run([sys.executable, "-c", "raise SystemExit(3)"])
    with pytest.raises(ToolError, match=r"`no-such-tool --x` could not be started: No such file or directory\."):
        run(["no-such-tool", "--x"])


def test_lines_are_handed_on_as_they_come_whichever_stream_they_are_on() -> None:
    program = "import sys; print('out'); sys.stdout.flush(); print('err', file=sys.stderr)"
    assert stream([sys.executable, "-c", program]) == ["out", "err"]


def test_a_carriage_return_in_what_is_captured_stays_one() -> None:
    assert run_captured([sys.executable, "-c", "print('a\\rb', end='')"]) == "a\rb"


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
