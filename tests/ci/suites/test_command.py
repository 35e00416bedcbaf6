"""The options that a test command gets, and a command for one test alone."""

from pathlib import Path

import pytest

from nightjar_ci.suites.command import find_pytest, select_test, with_last_failed, with_report
from tests.ci.jobs import make_job

NODE = "tests/test_a.py::TestX::test_y[1]"


@pytest.mark.parametrize(
    ("command", "index"),
    [
        (["pytest"], 0),
        (["/env/bin/pytest", "-q"], 0),
        (["python3", "-X", "dev", "-m", "pytest"], 4),
        (["coverage", "run", "-m", "pytest"], 3),
        (["timeout", "60", "pytest", "tests"], 2),
        (["env", "--chdir=tests", "pytest"], 2),  # of a job with a `cwd`
        (["ctest", "--output-junit", "a.xml"], None),
        (["bash", "-c", "cd a && pytest && cd b && pytest"], None),
        (["tool", "--runner", "pytest"], None),
    ],
)
def test_pytest_is_found_where_the_command_starts_it(command: list[str], index: int | None) -> None:
    assert find_pytest(command) == index


def test_pytest_is_told_where_to_report_and_keeps_the_users_own_options() -> None:
    job = with_report(make_job("pytest", "tests", env={"PYTEST_ADDOPTS": "-q"}))
    assert job.command == ("pytest", "tests")
    assert job.env["PYTEST_ADDOPTS"].startswith("'--junitxml={out}/junit.xml' -o junit_family=xunit1")
    assert job.env["PYTEST_ADDOPTS"].endswith(" -q")
    again = with_last_failed(job).env["PYTEST_ADDOPTS"]
    assert again.startswith("--last-failed --last-failed-no-failures=none '--junitxml={out}/junit.xml'")


def test_a_report_that_the_user_asked_for_is_the_only_one() -> None:
    job = with_report(make_job("pytest", "--junitxml={out}/mine.xml"))
    assert "--junitxml" not in job.env["PYTEST_ADDOPTS"]


def test_absltest_is_told_by_its_variable_and_other_programs_are_left_alone() -> None:
    assert with_report(make_job("python3.12", "a_test.py")).env == {"XML_OUTPUT_FILE": "{out}/junit.xml"}
    assert with_report(make_job("make", "test")).env == {}
    assert with_last_failed(make_job("make", "test")).env == {}


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["pytest"], ["pytest", NODE]),
        (["pytest", "tests", "-q", "more/tests"], ["pytest", "-q", NODE]),
        (
            ["python", "-m", "pytest", "-n", "2", "-k", "not slow", "a::b"],
            ["python", "-m", "pytest", "-n", "2", "-k", "not slow"],
        ),
        (["pytest", "-c", "cfg.ini", "--rootdir=x", "tests"], ["pytest", "-c", "cfg.ini", "--rootdir=x", NODE]),
        (["pytest", "-x", "cfg.ini"], ["pytest", "-x", NODE]),
    ],
)
def test_the_test_takes_the_place_of_files_and_folders(command: list[str], expected: list[str], tmp_path: Path) -> None:
    (tmp_path / "cfg.ini").touch()
    (tmp_path / "more" / "tests").mkdir(parents=True)
    (tmp_path / "tests").mkdir()
    if expected[-1] != NODE:
        expected = [*expected, NODE]
    assert select_test(command, NODE, tmp_path) == tuple(expected)


def test_a_test_of_a_package_below_is_named_from_here_and_values_of_plugins_options_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "packages" / "a" / "tests" / "test_x.py"
    path.parent.mkdir(parents=True)
    path.touch()
    command = ["pytest", "--color", "yes", "--reruns", "2", "packages/a/tests"]
    selected = select_test(command, "tests/test_x.py::test_x", tmp_path)
    assert selected == ("pytest", "--color", "yes", "--reruns", "2", "packages/a/tests/test_x.py::test_x")
    moved = ("env", "--chdir=packages/a", "pytest")
    for node in ("tests/test_x.py::test_x", "packages/a/tests/test_x.py::test_x"):  # of either folder
        assert select_test([*moved, "tests"], node, tmp_path) == (*moved, "tests/test_x.py::test_x")


def test_a_command_without_pytest_and_a_test_without_a_node_stay() -> None:
    assert select_test(["ctest"], NODE, Path()) == ("ctest",)
    assert select_test(["pytest", "tests"], None, Path()) == ("pytest", "tests")


@pytest.mark.parametrize(
    "option",
    ["--deselect=a.py::b", "--deselect a.py::b", "--ignore tests/slow", "--junitxml r.xml", "--basetemp t", "-p x"],
)
def test_the_value_of_an_option_is_kept(option: str) -> None:
    command = ["pytest", *option.split(), "tests"]
    assert select_test(command, "tests/b.py::t", Path("/no")) == ("pytest", *option.split(), "tests/b.py::t")
