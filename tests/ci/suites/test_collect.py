"""Test jobs run for real: what fails, what is flaky, what crashes, and what each leaves in its result."""

import sys
from pathlib import Path

import pytest

from nightjar_ci.formats.night_folder import read_result
from nightjar_ci.formats.outcome import Outcome
from nightjar_ci.formats.run_record import read_run
from nightjar_ci.formats.suite import KnownFailure, Suite, SuiteOptions
from nightjar_ci.night.run_job import _is_worth_it as is_worth_it
from nightjar_ci.night.run_job import run_job
from tests.ci.jobs import make_job, python
from tests.ci.nights import record

PYTEST = (sys.executable, "-m", "pytest", "-p", "no:randomly", "-p", "no:xdist", "--rootdir", ".")
SUITE = """
import pathlib
FLAG = pathlib.Path(__file__).with_name("flag")
def test_good(): pass
def test_bad():
    print("said before")
    assert 1 + 1 == 3, "sums"
def test_flaky():
    if not FLAG.exists():
        FLAG.touch()
        raise ValueError("first time")
class TestX:
    def test_known(self): raise RuntimeError("old")
"""


def run(folder: Path, *command: str, options: SuiteOptions | None = None) -> tuple[Outcome, Suite | None]:
    job = make_job(*command, id="suite", cell="suite", replicate=None, kind="test", tests=options, timeout_s=60.0)
    outcome = run_job(job, folder / "out")
    record = read_result(folder / "out")
    return outcome, None if record is None else record.tests


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "test_a.py").write_text(SUITE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_a_failing_suite_completes_and_each_test_has_its_state(project: Path) -> None:
    known = KnownFailure(test="*test_known", reason="waits for a release", issue="https://example.com/1")
    outcome, suite = run(project, *PYTEST, "test_a.py", options=SuiteOptions(known_failure=(known,)))
    assert (outcome.state, outcome.exit_code) == ("completed", 1)
    assert (
        outcome.message
        == "2/3 tests passed, 1 known to fail, 1 flaky; these fail:\n  test_a.test_bad: AssertionError: sums"
    )
    assert suite is not None
    cases = suite.by_name()
    assert {name: case.state for name, case in cases.items()} == {
        "test_a.TestX.test_known": "failed",
        "test_a.test_bad": "failed",
        "test_a.test_flaky": "flaky",
        "test_a.test_good": "passed",
    }
    assert cases["test_a.TestX.test_known"].known == "waits for a release (https://example.com/1)"
    assert (cases["test_a.test_bad"].runs, cases["test_a.test_good"].runs) == (3, 1)
    assert cases["test_a.test_bad"].node == "test_a.py::test_bad"
    assert "said before" in (cases["test_a.test_bad"].quote or "")
    assert ("short test summary" in (suite.stdout_end or ""), suite.stderr_end) == (True, None)
    logs = [(project / "out" / name / "stdout.log").read_text() for name in ("", "rerun-1", "rerun-2")]
    assert ["3 failed, 1 passed" in logs[0], "2 failed, 1 passed" in logs[1], "2 failed" in logs[2]] == [True] * 3


def test_a_passing_suite_runs_once_and_keeps_what_it_measured(project: Path) -> None:
    (project / "test_a.py").write_text("def test_good(record_property): record_property('loss', f'{0.5} nats')\n")
    outcome, suite = run(project, *PYTEST, "test_a.py")
    assert (outcome.state, outcome.message) == ("completed", None)
    assert suite is not None
    assert (suite.passed, suite.ran, suite.stdout_end) == (1, 1, None)
    assert not (project / "out" / "rerun-1").exists()
    measured = read_run(project / "out" / "result.json").sample("test_a.test_good.loss")
    assert measured is not None
    assert (measured.values, measured.unit) == ((0.5,), "nats")


def test_a_project_that_stops_at_its_first_failure_is_run_to_its_end_and_a_missing_fixture_is_named(
    project: Path,
) -> None:
    (project / "pytest.ini").write_text("[pytest]\naddopts = -x\n")
    (project / "test_a.py").write_text("def test_a(absent): pass\ndef test_b(): assert 0\ndef test_c(): pass\n")
    _, suite = run(project, *PYTEST, "test_a.py", options=SuiteOptions(reruns=0))
    assert suite is not None
    assert [case.state for case in suite.cases] == ["failed", "failed", "passed"]
    assert "fixture 'absent' not found" in (suite.cases[0].message or "")


def test_a_file_that_cannot_be_imported_is_a_failing_test_and_stops_no_other(project: Path) -> None:
    (project / "test_a.py").write_text("import jax_that_is_not_there\n")
    (project / "test_b.py").write_text("def test_good(): __import__('os').mkfifo('out/x')\ndef test_bad(): 1 / 0\n")
    outcome, suite = run(project, *PYTEST, options=SuiteOptions(reruns=0))
    assert (outcome.state, outcome.exit_code) == ("completed", 1)
    assert (outcome.message or "").endswith("\nsuite: removed from its output folder: 'x' (a FIFO).")
    assert suite is not None
    states = {case.name: case.state for case in suite.cases}
    assert states == {"test_a": "failed", "test_b.test_bad": "failed", "test_b.test_good": "passed"}
    case = suite.by_name()["test_a"]
    assert "No module named 'jax_that_is_not_there'" in (case.quote or "")


@pytest.mark.parametrize(("exit_code", "states"), [(1, []), (2, ["failed"]), (3, ["failed"])])
def test_a_known_failure_hides_no_early_end_of_pytest(project: Path, exit_code: int, states: list[str]) -> None:
    (project / "conftest.py").write_text(f"def pytest_sessionfinish(session): session.exitstatus = {exit_code}\n")
    known = KnownFailure(test="*", reason="waits for a release")
    outcome, suite = run(project, *PYTEST, "test_a.py", options=SuiteOptions(reruns=0, known_failure=(known,)))
    assert outcome.exit_code == exit_code
    assert suite is not None
    command = [case for case in suite.cases if case.name == "command"]
    assert [case.state for case in command] == states
    assert not any(case.known for case in command)  # the glob does not name it


def test_options_that_pytest_does_not_know_fail_the_command_itself(project: Path) -> None:
    outcome, suite = run(project, *PYTEST, "--no-such-option")
    assert outcome.state == "completed"
    assert suite is not None
    [case] = suite.cases
    assert (case.name, case.state, case.message) == ("command", "failed", "exit code 4, expected 0")
    assert "unrecognized arguments: --no-such-option" in (case.quote or "")


@pytest.mark.parametrize(("exit_code", "state"), [(0, "passed"), (3, "failed")])
def test_a_command_without_a_report_is_one_test(tmp_path: Path, exit_code: int, state: str) -> None:
    outcome, suite = run(tmp_path, *python(f"raise SystemExit({exit_code})"))
    assert outcome.completed
    assert suite is not None
    assert [(case.name, case.state) for case in suite.cases] == [("command", state)]


def test_absltest_reports_by_itself(tmp_path: Path) -> None:
    (tmp_path / "add_test.py").write_text(
        "from absl.testing import absltest\nclass AddTest(absltest.TestCase):\n"
        "  def test_add(self): self.assertEqual(1, 2)\nabsltest.main()\n"
    )
    _, suite = run(tmp_path, sys.executable, str(tmp_path / "add_test.py"))
    assert suite is not None
    [case] = suite.cases
    assert (case.name, case.message) == ("__main__.AddTest.test_add", "1 != 2")


@pytest.mark.parametrize(
    ("program", "state"), [("import os; os.abort()", "killed"), ("import time; time.sleep(60)", "timeout")]
)
def test_a_crash_and_a_hang_are_no_results(tmp_path: Path, program: str, state: str) -> None:
    job = make_job(*python(program), kind="test", timeout_s=2.0)
    assert run_job(job, tmp_path / "out").state == state
    assert read_result(tmp_path / "out") is None


def test_a_report_that_is_missing_or_damaged_is_said(tmp_path: Path) -> None:
    outcome, _ = run(tmp_path, *python("pass"), options=SuiteOptions(junit="mine.xml"))
    assert outcome.state == "invalid"
    assert "no file matches 'mine.xml'" in (outcome.message or "")
    outcome, _ = run(tmp_path, *python("open(__import__('os').environ['NIGHTJAR_OUT'] + '/a.xml', 'w').write('<a')"))
    assert outcome.state == "invalid"
    assert "not a JUnit file" in (outcome.message or "")


def test_an_exit_code_that_no_test_explains_is_a_failure(project: Path) -> None:
    (project / "test_a.py").write_text("def test_good(): pass\n")
    (project / "conftest.py").write_text("def pytest_sessionfinish(session): session.exitstatus = 7\n")
    _, suite = run(project, *PYTEST, "test_a.py")
    assert suite is not None
    assert suite.by_name()["command"].message == "exit code 7, though no test failed"


@pytest.mark.parametrize(("failing", "again"), [(0, False), (1, True), (100, True), (101, False)])
def test_a_hundred_failing_tests_are_tried_again_and_no_more(tmp_path: Path, failing: int, again: bool) -> None:
    cases = "".join(f"<testcase name='t{n}'><failure message='m'/></testcase>" for n in range(failing))
    (tmp_path / "junit.xml").write_text(f"<testsuite><testcase name='good'/>{cases}</testsuite>")
    assert is_worth_it(tmp_path, SuiteOptions()) == again


@pytest.mark.parametrize(("how", "names"), [("cp", {"step_time", "tests_passed"}), ("ln -s", {"tests_passed"})])
def test_measures_that_a_suite_leaves_join_its_result_and_those_behind_a_link_do_not(
    tmp_path: Path, how: str, names: set[str]
) -> None:
    (tmp_path / "mine.json").write_text(record(0, job="suite").model_dump_json(by_alias=True))
    run(tmp_path, "sh", "-c", f"{how} {tmp_path}/mine.json $NIGHTJAR_OUT/result.json")
    result = read_result(tmp_path / "out")
    assert result is not None
    assert {sample.name for sample in result.samples} & {"step_time", "tests_passed"} == names
    assert [curve.name for curve in result.curves] == ["loss"] * (how == "cp")
