"""`pytest --nightjar`: what tests measure becomes a result; without the option nothing happens."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nightjar_ci.formats.night_results import read_night_results
from nightjar_ci.formats.run_record import read_run
from nightjar_ci.night.matrix import read_matrix
from nightjar_ci.night.run import run_night

TESTS = """import pytest

@pytest.mark.parametrize("seed", [0, 1])
def test_loss(nightjar, seed):
    for value in (1.0, 2.0 + seed):
        nightjar.measure("loss", value, unit="nats")

def test_speed(nightjar):
    nightjar.measure("rate", "12", unit="tokens/s", better="higher")
    assert False

def test_plain(): pass
"""
MATRIX = """schema = "nightjar.matrix/1"
name = "lib"
[[job]]
name = "lib-tests"
kind = "test"
command = ["python", "-m", "pytest", "--nightjar", "test_lib.py"]
[job.tests]
reruns = 0
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "test_lib.py").write_text(TESTS)
    return tmp_path


def run_pytest(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("NIGHTJAR_")}
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_measures_of_all_tests_are_in_one_file(project: Path, workers: tuple[str, ...]) -> None:
    done = run_pytest(project, "--nightjar", "--nightjar-out", "out/run.json", *workers, "test_lib.py")
    assert done.returncode == 1
    assert "nightjar: measures written to out/run.json: 3" in done.stdout
    record = read_run(project / "out" / "run.json")
    assert {sample.name: sample.values for sample in record.samples} == {
        "test_lib.test_loss[0].loss": (1.0, 2.0),
        "test_lib.test_loss[1].loss": (1.0, 3.0),
        "test_lib.test_speed.rate": (12.0,),
    }
    rate = record.sample("test_lib.test_speed.rate")
    assert rate is not None
    assert (rate.unit, rate.better) == ("tokens/s", "higher")


def test_without_the_option_nothing_is_measured_or_written(project: Path) -> None:
    done = run_pytest(project, "--junitxml=junit.xml", "test_lib.py")
    assert "nightjar:" not in done.stdout
    assert sorted(path.name for path in project.glob("*.*")) == ["junit.xml", "test_lib.py"]
    assert "nats" not in (project / "junit.xml").read_text()


def test_a_file_that_cannot_be_written_fails_no_test(project: Path) -> None:
    (project / "taken").touch()
    done = run_pytest(project, "--nightjar", "--nightjar-out", "taken/run.json", "test_lib.py", "-k", "loss")
    assert done.returncode == 0
    assert "nightjar: taken/run.json was not written" in done.stdout


def test_what_a_test_job_measures_is_in_its_result_beside_its_tests(project: Path) -> None:
    (project / "matrix.toml").write_text(MATRIX)
    run_night(read_matrix(project / "matrix.toml"), project / "night")
    ((outcome, record),) = read_night_results(project / "night")
    assert outcome.completed
    assert record is not None
    assert record.tests is not None
    assert (record.tests.passed, record.tests.ran) == (3, 4)
    names = {sample.name for sample in record.samples}
    assert {"tests_passed", "test_lib.test_loss[0].loss", "test_lib.test_speed.rate"} <= names


def test_the_plugin_costs_no_heavy_import() -> None:
    program = (
        "import sys, pytest; before = set(sys.modules); import nightjar_ci.pytest_plugin; "
        "print(*set(sys.modules) - before)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert loaded <= {"nightjar_ci"}
