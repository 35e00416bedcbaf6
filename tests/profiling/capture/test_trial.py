import sys
from dataclasses import replace
from pathlib import Path

import pytest

from nightjar_profiling.capture.trial import judge_trial, measure_elapsed, plan_trial
from nightjar_profiling.commands.why import render_trial
from nightjar_profiling.errors import InputError
from tests.profiling.builders import training_trace
from tests.profiling.capture.test_capture import STEPS
from tests.profiling.capture_folder.test_manifest import MANIFEST
from tests.profiling.conftest import Run
from tests.profiling.tabled import op, tables

HERE = replace(MANIFEST, environment={"cwd": "/"})


def test_both_commands_are_captured_in_turn_with_the_steps_of_the_capture(tmp_path: Path) -> None:
    trial = plan_trial(HERE, "python train.py '--donate all'", 2, tmp_path)
    captures = list(trial.list_captures(tmp_path))
    assert [side for side, _, _ in captures] == ["before", "after", "before", "after"]
    assert [folder.name for _, folder, _ in captures] == ["before0", "after0", "before1", "after1"]
    _, _, command = captures[1]
    assert command[command.index("--") :] == ["--", "python", "train.py", "--donate all"]
    assert command[command.index("--steps") + 1] == "1:2"
    assert trial.folder == "/"


@pytest.mark.parametrize(
    ("manifest", "command", "message"),
    [
        (replace(HERE, command=()), "python train.py", "does not say which command made it"),
        (replace(HERE, environment={"cwd": "/is/not/there"}), "python train.py", "which is not there"),
        (HERE, "", "the command is empty"),
        (HERE, "python 'train.py", "No closing quotation"),
    ],
)
def test_what_cannot_be_run_again_is_refused(manifest: object, command: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        plan_trial(manifest, command, 3, Path("capture"))  # type: ignore[arg-type]


def test_a_step_lasts_from_the_first_op_to_the_last_over_the_steps() -> None:
    ops = [op("dot", 0, 30), op("dot", 70, 30), op("add", 10, 20, device=1)]
    steps = [{"rank": 0, "step": number, "start_ns": 0, "duration_ns": 50} for number in (3, 4)]
    assert measure_elapsed(tables(ops=ops, steps=steps)) == 50
    runs = [{"rank": 0, "device": 0, "program_id": 1, "execution": number} for number in range(4)]
    assert measure_elapsed(tables(ops=ops, executions=runs)) == 25


def test_a_faster_step_is_certain_only_where_the_captures_agree() -> None:
    sure = judge_trial([100.0, 102.0, 101.0], [80.0, 81.0, 79.0])
    assert sure.certain
    assert sure.delta_ns == pytest.approx(-21.0)
    assert not judge_trial([100.0, 140.0, 80.0], [90.0, 120.0, 70.0]).certain
    assert not judge_trial([100.0, 101.0, 99.0], [100.0, 101.0, 99.0]).certain
    text = render_trial(judge_trial([1e8, 1.02e8], [8e7, 8.1e7]), "python train.py --donate", 2)
    assert text.startswith("Measured: python train.py --donate: 101.000 -> 80.500 ms a step, -20.3% (95 % interval -")


@pytest.mark.slow
def test_a_trial_that_does_not_tell_or_does_not_run_says_so(run_command: Run, fake_jax: Path, tmp_path: Path) -> None:
    variables = {"PYTHONPATH": str(fake_jax), "FAKE_TRACE": str(training_trace().write(tmp_path / "fake"))}
    (tmp_path / "train.py").write_text(STEPS)
    program = f"{sys.executable} train.py"
    made = run_command("capture", "--steps", "1:2", "--", sys.executable, "train.py", **variables)
    assert made.returncode == 0, made.stderr
    shown = run_command("why", "capture", "--try", program, "--dry-run", **variables)
    assert (shown.returncode, shown.stdout, shown.stderr.count(" -- ")) == (0, "", 6)
    same = run_command("why", "capture", "--try", program, "--runs", "2", **variables)
    assert same.returncode == 4
    assert "Measured: " in same.stdout
    assert "2 captures of each side do not tell" in same.stderr
    failed = run_command("why", "capture", "--try", f"{sys.executable} -c 'import jax; 1/0'", **variables)
    assert failed.returncode == 3
    assert "ZeroDivisionError" in failed.stderr
