"""The time limit of a suite: what ran before it counts, and every part has its turn."""

import subprocess
import sys
from pathlib import Path

import pytest

from nightjar_ci.formats.suite import Suite, SuiteOptions, describe_counts
from nightjar_ci.suites.command import with_time_limit
from nightjar_ci.suites.time_limit_plugin import sort_by_round
from tests.ci.jobs import make_job
from tests.ci.suites.test_collect import run as run_suite

PYTEST = (sys.executable, "-m", "pytest", "-p", "no:randomly", "--rootdir", ".")
SUITE = """
import pathlib, pytest, time
@pytest.mark.parametrize("number", range(4))
def test_many(number):
    with open("order", "a") as file:
        print(f"many {number}", file=file)
    if number == 2:
        time.sleep(60 if pathlib.Path("hang").exists() else 0)
    assert number != 1
def test_last():
    with open("order", "a") as file:
        print("last", file=file)
"""


def run(folder: Path, limit_s: float | None, *options: str) -> Suite:
    tests = SuiteOptions(limit_s=limit_s, reruns=0)
    outcome, suite = run_suite(folder, *PYTEST, *options, "test_a.py", options=tests)
    assert outcome.completed, outcome.message
    assert suite is not None
    return suite


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "test_a.py").write_text(SUITE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("options", [("-p", "no:xdist"), ("-n", "1")])
def test_what_does_not_fit_is_counted_and_not_skipped_by_its_owner(project: Path, options: tuple[str, ...]) -> None:
    suite = run(project, 1e-6, *options)
    assert (suite.ran, suite.cut, len(suite.cases)) == (0, 5, 5)
    assert describe_counts([suite]) == "0/0 tests passed, 5 not run within the time limit"
    assert not (project / "order").exists()


def test_every_function_runs_once_before_further_parameters_of_any(project: Path) -> None:
    suite = run(project, 600, "-p", "no:xdist")
    assert (project / "order").read_text().splitlines() == ["many 0", "last", "many 1", "many 2", "many 3"]
    assert (suite.passed, suite.ran, suite.cut) == (4, 5, 0)


def test_without_a_limit_the_order_is_that_of_pytest(project: Path) -> None:
    run(project, None, "-p", "no:xdist")
    assert (project / "order").read_text().splitlines()[-1] == "last"


def test_in_an_image_the_plugin_comes_before_the_path_of_the_image(tmp_path: Path) -> None:
    program = tmp_path / "pytest"
    program.write_text("#!/bin/sh\necho $PYTHONPATH")
    program.chmod(0o755)
    job = make_job(str(program), environment="image:x", tests=SuiteOptions(limit_s=9))
    command, variables = with_time_limit(job, tmp_path).rendered(tmp_path)
    said = subprocess.run(command, env={"PYTHONPATH": "of-image", **variables}, capture_output=True, check=True).stdout
    assert said.decode() == f"{tmp_path}/time-limit:of-image\n"


@pytest.mark.parametrize("names", [("t[a]", "t[b]"), ("t__with_jit", "t__with_device"), ("t1", "t2")])
def test_variants_of_pytest_chex_and_absl_are_of_one_function(names: tuple[str, str]) -> None:
    first, second = (f"a.py::T::{name}" for name in names)
    assert sort_by_round([first, second, "a.py::T::other"]) == [0, 2, 1]
