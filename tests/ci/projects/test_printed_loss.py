"""A training script's loss is found in what it prints, and gated."""

import math
from pathlib import Path

import pytest

from nightjar_ci.cli import main
from nightjar_ci.night.matrix import expand, read_matrix
from nightjar_ci.projects import printed_loss
from nightjar_ci.projects.matrix_text import MATRIX, POLICIES
from nightjar_ci.projects.printed_loss import find_pattern, read_lines, run_briefly
from tests.called import call
from tests.ci.projects.folders import write_folder


@pytest.mark.parametrize(
    ("lines", "read"),
    [
        ("step 0 loss 4.5|step 10 loss 3.5|done", [(0, 4.5), (10, 3.5)]),
        ("loss: 4.5|loss: -3.5.", [(None, 4.5), (None, -3.5)]),
        ("Epoch [  1/20], Loss: 1.2e-05|Epoch [ 10/20], Loss: nan", [(1, 1.2e-05), (10, math.nan)]),
        ("epoch 1, val_loss=2, train_loss=4|epoch 2, val_loss=1, train_loss=3", [(1, 4), (2, 3)]),
        ("step 0: train loss 4, val loss 5|iter 0: loss 4|iter 1: loss 3|iter 2: loss 2", [(0, 4), (1, 3), (2, 2)]),
        ("epoch 1 step 1 loss 4|epoch 1 step 2 loss 3|epoch 2 step 1 loss 2", [(None, 4), (None, 3), (None, 2)]),
        ("epoch 1 step 1 loss 4|epoch 1 step 2 loss 3", [(None, 4), (None, 3)]),  # a short run sees one epoch
        ('{"iter": 2, "eval": {"eval_loss": 1}, "train": {"train/loss": 4}}', [(2, 4)]),
        ("10 {'loss': Array(2.5, dtype=float32), 'lr': 1}", [(None, 2.5)]),
        (" 1%|#| 1/99 [00:01<00:09, 9it/s, loss=4]| 2%|#| 2/99 [00:01<00:09, 9it/s, loss=3]", [(1, 4), (2, 3)]),
        ("loss 2.5 at step 10|loss of interest", [(10, 2.5)]),
        ("initial test loss 9|test loss 8|Loss 4", [(None, 4)]),
        ("step 1 loss: 4|step 1 eval loss: 9|step 2 loss: 3|final test loss: 9", [(1, 4), (2, 3)]),
        ("loss 4|eval/loss 9|final loss 3|loss 3", [(None, 4), (None, 3)]),
        ('{"train": {"loss": 4}}|{"eval": {"acc": 0.5, "loss": 9}}', None),
        ("step=1 ce_loss=2 aux_loss=9 loss=4|step=2 ce_loss=2 aux_loss=9 loss=3", [(1, 4), (2, 3)]),
        ("loss = 12,345.00|loss = 2,345.00|loss = 345.00", None),
        ("the loss falls|accuracy 0.5", None),
    ],
)
def test_the_loss_is_found_in_common_styles(lines: str, read: list[tuple[int | None, float]] | None) -> None:
    split = lines.replace("%|#|", "%##").split("|")
    pattern = find_pattern(split)
    if read is None:
        assert pattern is None
        return
    assert pattern is not None
    found = [(step, loss) for _, loss, step in read_lines(split, pattern)]
    assert [step for step, _ in found] == [step for step, _ in read]
    assert [loss for _, loss in found] == pytest.approx([loss for _, loss in read], nan_ok=True)


SCRIPT = """
import random, sys
noise, loss = random.Random({seed}), 4.0
for step in range(30):
    loss -= 0.1 * loss + noise.gauss(0, 0.01)
    print({line}, file=sys.{stream}, end="{end}")
"""


@pytest.mark.slow
def test_a_script_is_gated_without_an_edited_line(tmp_path: Path) -> None:
    bar = 'f"{step}/30 [00:01, loss={loss:.4f}]"'
    text = SCRIPT.format(seed='int(sys.argv[sys.argv.index("--seed") + 1])', line=bar, stream="stderr", end="\\r")
    write_folder(tmp_path, {"train.py": text})
    done = call(main, "init", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "0/30 [00:01, loss=3." in done.stderr
    assert "the loss of three seeds" in (tmp_path / MATRIX).read_text()
    assert (tmp_path / POLICIES).is_file()
    assert call(main, "baseline", MATRIX, "--seeds", "0:10", cwd=tmp_path).returncode == 0
    assert call(main, "nightly", MATRIX, cwd=tmp_path).returncode == 0
    write_folder(tmp_path, {"train.py": text.replace("0.1 * loss", "0.05 * loss")})
    assert call(main, "nightly", MATRIX, cwd=tmp_path).returncode == 1


def test_a_dry_run_runs_and_writes_nothing(tmp_path: Path) -> None:
    write_folder(tmp_path, {"train.py": "open('model.ckpt', 'w').write('loss 3')"})
    done = call(main, "init", "--dry-run", cwd=tmp_path)
    assert "train.py: not run now" in done.stderr
    assert (done.returncode, [path.name for path in tmp_path.iterdir()]) == (0, ["train.py"])


@pytest.mark.slow
def test_a_script_that_does_not_use_its_seed_gets_no_baseline(tmp_path: Path) -> None:
    text = SCRIPT.format(seed="0", line='f"loss {loss}"', stream="stdout", end="\\n")
    write_folder(tmp_path, {"train.py": text})
    assert "It has no --seed" in call(main, "init", cwd=tmp_path).stderr
    done = call(main, "baseline", MATRIX, "--seeds", "0:10", cwd=tmp_path)
    assert (done.returncode, "all seeds have the same curves" in done.stderr) == (3, True)
    assert "Hint: a baseline needs finite curves that differ from seed to seed" in done.stderr


@pytest.mark.slow
def test_a_script_without_an_end_is_cut_and_its_argument_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    endless = "import time\n# '--num_steps'\nwhile True:\n    print('loss 1.5')\n    time.sleep(0.1)\n"
    monkeypatch.chdir(write_folder(tmp_path, {"train.py": endless}))
    monkeypatch.setattr(printed_loss, "SHORT_RUN_S", 2.0)
    run = run_briefly("train.py", "project:.")
    assert (run.ended, run.length, run.lines) == (False, "--num_steps", ("loss 1.5",))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "problem"),
    [("import absent", "exit code 1: ModuleNotFoundError: No module named 'absent'"), ("print(1)", "`loss`")],
)
def test_a_script_without_a_loss_is_one_test_with_the_reason(tmp_path: Path, text: str, problem: str) -> None:
    write_folder(tmp_path, {"train.py": text})
    assert call(main, "init", cwd=tmp_path).returncode == 0
    assert problem in (tmp_path / MATRIX).read_text()
    (job,) = expand(read_matrix(tmp_path / MATRIX))
    assert (job.kind, (tmp_path / POLICIES).exists()) == ("test", False)
