"""Each planted fault in a real job is named by the right judge, and by no other: the quickest jobs of the nightly."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.places import ROOT

BASELINES = ROOT / "ci" / "baselines"
CELL = "vae_tiny-train-cpu-f32-dp1"
FULL_PAIRS = 'ab_args = ["--steps", "60"]'
SHORT_PAIRS = 'ab_args = ["--steps", "6"]'  # the planted sleep is many steps long: four pairs of short runs show it

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2000)]


def whole_run(fault: str) -> dict[str, list[str]]:
    return {CELL: break_job(fault, "--mesh", "dp1", "--seed", "{seed}")}


def break_job(fault: str, *options: str) -> list[str]:
    program = [sys.executable, str(Path(__file__).with_name("broken_trainer.py")), fault]
    return [*program, "train", "vae_tiny", *options, "--out", "{out}"]


def run_night(
    folder: Path, jobs: dict[str, list[str]], *options: str, baselines: str = str(BASELINES), **variables: str
) -> tuple[int, dict[tuple[str, str], str]]:
    """A night of jobs: its exit code, and each verdict's status by judge and series."""
    tables = [
        f'[[job]]\nname = "{cell}"\nseeds = [0]\ncommand = {json.dumps(command)}\n' for cell, command in jobs.items()
    ]
    (folder / "matrix.toml").write_text(f'schema = "nightjar.matrix/1"\nname = "broken"\n{"".join(tables)}')
    policies = (ROOT / "ci" / "policies.toml").read_text()
    assert FULL_PAIRS in policies
    (folder / "policies.toml").write_text(policies.replace(FULL_PAIRS, SHORT_PAIRS))
    night = ["nightly", str(folder / "matrix.toml"), "--out", str(folder / "night"), *options]
    given = ["--policies", str(folder / "policies.toml"), "--baselines", baselines]
    ended = subprocess.run(
        [sys.executable, "-m", "nightjar_ci", *night, *given],
        env={**os.environ, "NIGHTJAR_STATE_DIR": str(folder / "state"), "JAX_PLATFORMS": "cpu", **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=1900,
    )
    assert ended.stdout.splitlines()[-1] == str(folder / "night" / "report.html"), ended.stderr
    verdicts = json.loads((folder / "night" / "verdicts.json").read_text())["verdicts"]
    return ended.returncode, {(verdict["judge"], verdict["series"]): verdict["status"] for verdict in verdicts}


def regressed(verdicts: dict[tuple[str, str], str]) -> set[str]:
    """The judges that found a regression; every other verdict must be ok."""
    assert set(verdicts.values()) <= {"ok", "regressed"}, verdicts
    return {judge for (judge, _), status in verdicts.items() if status == "regressed"}


def judges(verdicts: dict[tuple[str, str], str]) -> set[str]:
    return {judge for judge, _ in verdicts}


def test_a_wrong_learning_rate_is_found_by_convergence_alone(tmp_path: Path, compiled: dict[str, str]) -> None:
    code, verdicts = run_night(tmp_path, whole_run("learning_rate"), **compiled)
    assert judges(verdicts) == {"convergence", "facts"}
    assert {verdicts["convergence", f"{CELL}/{curve}"] for curve in ("loss", "eval_loss")} == {"regressed"}
    assert regressed(verdicts) == {"convergence"}
    assert code == 1


@pytest.mark.weekly  # test_nightly_pipeline.py compares pairs of a workload that trains nothing
def test_a_sleep_in_the_step_is_found_by_the_performance_judge_alone(tmp_path: Path, compiled: dict[str, str]) -> None:
    code, verdicts = run_night(tmp_path, whole_run("speed"), "--reference", "current", **compiled)
    assert judges(verdicts) == {"convergence", "facts", "performance"}
    assert regressed(verdicts) == {"performance"}
    assert code == 1
