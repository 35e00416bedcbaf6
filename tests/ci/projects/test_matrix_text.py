"""The matrix that is written for a project is one that `nightly` reads."""

import re
from pathlib import Path

import pytest

from nightjar_ci.cli import main
from nightjar_ci.errors import InputError
from nightjar_ci.formats.job import Job
from nightjar_ci.formats.suite import KnownFailure
from nightjar_ci.night.matrix import expand, read_matrix
from nightjar_ci.projects.look import Project, look_at
from nightjar_ci.projects.matrix_text import MATRIX, TEST_TIMEOUT_S, render_matrix
from nightjar_ci.suites.command import select_test
from tests.called import call
from tests.ci.projects.folders import BENCHMARKS, LIBRARY, SCRIPT, write_folder


def read_back(project: Project) -> tuple[Job, ...]:
    path = project.folder / "matrix.toml"
    path.write_text(render_matrix(project), encoding="utf-8")
    return expand(read_matrix(path))


def test_tests_and_benchmarks_become_jobs(tmp_path: Path) -> None:
    tests, benchmarks = read_back(look_at(write_folder(tmp_path, LIBRARY, BENCHMARKS), ["XLA_FLAGS=--a={b}"]))
    assert (tests.id, tests.kind, tests.command) == ("my_lib-tests", "test", ("python", "-m", "pytest", "tests"))
    assert tests.rendered(Path("/out"))[1]["XLA_FLAGS"] == "--a={b}"
    assert tests.timeout_s == TEST_TIMEOUT_S
    assert benchmarks.kind == "train"
    assert benchmarks.adapter is not None
    assert "pytest-benchmark" in benchmarks.environment
    assert {"-n0", "--benchmark-enable"} <= {*benchmarks.command}  # which options of the project would else forbid


def test_tests_made_for_xdist_use_it(tmp_path: Path) -> None:
    files = {"pyproject.toml": '[dependency-groups]\ntest = ["pytest-xdist"]\n', "tests/test_a.py": ""}
    (job,) = read_back(look_at(write_folder(tmp_path, files)))
    assert job.command == ("python", "-m", "pytest", "-n", "auto", "tests")


def test_a_script_alone_is_a_test_and_beside_tests_a_comment(tmp_path: Path) -> None:
    (alone,) = read_back(look_at(write_folder(tmp_path / "a", SCRIPT)))
    assert (alone.kind, alone.command) == ("test", ("python", "train.py"))
    assert "pytest" not in alone.environment
    both = look_at(write_folder(tmp_path / "b", LIBRARY, SCRIPT))
    assert [job.id for job in read_back(both)] == ["my_lib-tests"]
    assert "gates the loss of train.py" in render_matrix(both)


def test_tests_that_fail_already_are_known_failures(tmp_path: Path) -> None:
    failing = KnownFailure(test='tests.test_a.test_b["*"]', reason='boom: "y"', issue="https://example.com/7")
    project = look_at(write_folder(tmp_path, LIBRARY, BENCHMARKS))
    (tmp_path / "matrix.toml").write_text(render_matrix(project, [failing]), encoding="utf-8")
    tests, benchmarks = expand(read_matrix(tmp_path / "matrix.toml"))
    assert tests.tests is not None
    assert tests.tests.find_known(failing.test) == failing
    assert tests.tests.find_known('tests.test_a.test_b["+"]') is None
    assert KnownFailure(test="tests.*[x?]", reason="boom").matches("tests.test_a.test_b[x?]")
    assert benchmarks.tests is None


def test_a_missing_module_is_no_known_failure_and_a_reason_names_no_folder(tmp_path: Path) -> None:
    tests = {"tests/test_a.py": "def test_a():\n    open('/absent/at/all.npz')\n", "tests/test_b.py": "import ogb\n"}
    write_folder(tmp_path, tests, {"tests/test_c.py": "import json.absent\n", "requirements-graphs.txt": "--pre\n"})
    assert call(main, "init", cwd=tmp_path).returncode == 0
    path = tmp_path / MATRIX
    path.write_text(re.sub("environment = .*", 'environment = "current"', path.read_text()))
    assert call(main, "nightly", MATRIX, "--out", "night", cwd=tmp_path).returncode == 1
    done = call(main, "init", "--force", "--known-failures", "night", cwd=tmp_path)
    assert "lack the module 'ogb'" in done.stderr
    (job,) = expand(read_matrix(path))
    assert job.tests is not None
    reasons = {known.test: known.reason for known in job.tests.known_failure}
    assert reasons.keys() == {"tests.test_a.test_a", "tests.test_c"}
    assert reasons["tests.test_a.test_a"].endswith("No such file or directory: 'all.npz'")


def test_tests_that_name_files_from_below_the_folder_run_there(tmp_path: Path) -> None:
    opens = "def test_a(): open('../pkg/tests/a.json'); open('../absent.txt')\n"
    (job,) = read_back(look_at(write_folder(tmp_path, {"pkg/tests/test_a.py": opens, "pkg/tests/a.json": ""})))
    assert job.command == ("env", "--chdir=pkg", "python", "-m", "pytest", "tests")
    (tmp_path / "pkg/tests/a.json").unlink()
    assert look_at(tmp_path).cwd is None


def test_a_job_has_a_working_folder_and_one_of_its_tests_runs_alone(tmp_path: Path) -> None:
    tests = {
        "pyproject.toml": "",
        "sub/data.txt": "",
        "sub/test_a.py": "def test_a():\n    assert not open('data.txt').read()\n",
    }
    write_folder(tmp_path, tests)
    text = 'schema = "nightjar.matrix/1"\nname = "a"\n[[job]]\nname = "a"\nkind = "test"\ncwd = "sub"\n'
    (tmp_path / "matrix.toml").write_text(text + 'command = ["python", "-m", "pytest", "."]\n')
    assert call(main, "nightly", "matrix.toml", cwd=tmp_path).returncode == 0
    (job,) = expand(read_matrix(tmp_path / "matrix.toml"))
    alone = select_test(job.command, "sub/test_a.py::test_a", tmp_path)
    assert alone == ("env", "--chdir=sub", "python", "-m", "pytest", "test_a.py::test_a")


def test_nothing_to_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is nothing to run"):
        render_matrix(look_at(tmp_path))


def test_a_source_distribution_without_tests_points_to_the_repository(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is nothing to run") as caught:
        render_matrix(look_at(write_folder(tmp_path, {"PKG-INFO": "Name: a\n"})))
    assert "use a checkout" in str(caught.value)


def test_a_time_limit_leaves_time_for_the_tests_that_fail(tmp_path: Path) -> None:
    project = look_at(write_folder(tmp_path, LIBRARY))
    failing = KnownFailure(test="a", reason="waits")
    (tmp_path / "matrix.toml").write_text(render_matrix(project, [failing], limit_s=7200), encoding="utf-8")
    (job,) = expand(read_matrix(tmp_path / "matrix.toml"))
    assert job.tests is not None
    assert (job.tests.limit_s, job.timeout_s) == (7200, 14400)
    assert job.tests.find_known("a") is not None
