"""A trial: real test runs on both sides, and what is said of them."""

import json
import os
import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from nightjar_ci.cli import main
from nightjar_ci.commands.try_project import _Question, _read_matrix, _run
from nightjar_ci.environments.prepare import Environments
from nightjar_ci.errors import ExitCode
from nightjar_ci.formats.night_results import read_night_results
from nightjar_ci.formats.outcome import make_outcome
from nightjar_ci.formats.suite import Case, CaseState, KnownFailure, Suite
from nightjar_ci.night.matrix import expand, read_matrix
from nightjar_ci.projects.look import look_at
from nightjar_ci.projects.removed import Removal
from nightjar_ci.projects.sides import Sides, find_python_version
from nightjar_ci.projects.trial import (
    AFTER,
    BEFORE,
    Side,
    Trial,
    compare_sides,
    compare_suites,
    find_earlier_jax,
    plan_trial,
    run_trial,
    with_time_limit,
)
from nightjar_ci.projects.trial_text import find_exit_code, render_json, render_trial
from nightjar_ci.settings import read_settings
from tests.called import call
from tests.ci.jobs import write_matrix
from tests.ci.nights import make_night
from tests.ci.servers import serve

MATRIX = """schema = "nightjar.matrix/1"
name = "lib"
[[job]]
name = "lib-tests"
kind = "test"
command = ["python", "-m", "pytest", "-q", "test_lib.py"]
[job.tests]
reruns = 0
[[job]]
name = "lib-benchmarks"
command = ["true"]
"""
TESTS = """import os
SIDE = os.environ["NIGHTJAR_JOB"].rpartition("-")[2]
def test_always(): pass
def test_never(): assert SIDE == "neither"
def test_broken(): assert SIDE == "before"
def test_mended(): assert SIDE == "after"
if SIDE == "after":
    def test_new(): pass
"""


def ended(jax: str, n_passed: int = 1, counts: str | None = "1/1 tests passed") -> Side:
    return Side(environment="current", jax=jax, counts=counts, n_passed=n_passed, duration_s=1.0, packages={})


@pytest.fixture
def trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trial:
    monkeypatch.chdir(tmp_path)
    Path("test_lib.py").write_text(TESTS)
    Path("matrix.toml").write_text(MATRIX)
    paired, jobs = plan_trial(read_matrix(Path("matrix.toml")), "current", "current")
    assert [job.id for job in jobs] == ["lib-tests-before", "lib-tests-after"]
    settings = read_settings({"NIGHTJAR_STATE_DIR": str(tmp_path / "state")})
    return run_trial(paired, jobs, tmp_path / "trial", Environments(settings), 2)


@pytest.mark.slow
def test_every_test_that_differs_is_named(trial: Trial) -> None:
    names = {
        kind: [difference.test.rpartition(".")[2] for difference in getattr(trial, kind)]
        for kind in ("broken", "mended", "failing")
    }
    assert names == {"broken": ["test_broken"], "mended": ["test_mended"], "failing": ["test_never"]}
    assert [name.rpartition(".")[2] for name in trial.absent] == ["test_new"]
    assert find_exit_code(trial) == ExitCode.NO
    text = "\n".join(render_trial(trial, {"lib-tests": ("pytest",)}))
    assert (
        "1 test failed with current, not with current:\n  test_lib.test_broken: AssertionError: assert 'after' =="
        in text
    )
    assert "1 test passed with" in text
    document = render_json(trial)
    assert isinstance(document, dict)
    assert document["exit_code"] == 1
    json.dumps(document)


@pytest.mark.parametrize(
    ("n_compared", "before", "after", "code", "words"),
    [
        (795, ended("1"), ended("2"), ExitCode.OK, "No difference in 795 tests that ran on both sides."),
        (795, ended("1", 0), ended("2", 0), ExitCode.CANNOT_TELL, "Cannot tell: no test passes."),
        (795, ended("1"), ended("2", 0, None), ExitCode.FAILED, "did not complete"),
        (0, ended("1"), ended("2"), ExitCode.CANNOT_TELL, "Cannot tell: no test ran on both sides."),
    ],
)
def test_the_exit_code_fits_the_words(n_compared: int, before: Side, after: Side, code: ExitCode, words: str) -> None:
    trial = Trial(folder=Path("logs"), before=before, after=after, n_compared=n_compared)
    assert find_exit_code(trial) == code
    assert words in "\n".join(render_trial(trial, {}))


def test_packages_that_differ_beside_jax_are_named() -> None:
    before, after = (replace(ended(jax), packages={"jax": jax, "numpy": f"2.{jax}", "six": "1.17"}) for jax in "12")
    text = "\n".join(render_trial(Trial(folder=Path("logs"), before=before, after=after, n_compared=1), {}))
    assert "Other packages that differ: numpy 2.1 -> 2.2\n" in text


def test_tests_that_lack_a_module_name_it() -> None:
    failing = [case("test_a", "failed", "ModuleNotFoundError: No module named 'ogb'")]
    trial = replace(compare(failing, failing), before=ended("1", 0), after=ended("2", 0))
    assert "no test passes. They lack ogb, which" in "\n".join(render_trial(trial, {}))


def test_a_test_that_is_skipped_after_the_change_is_told() -> None:
    trial = compare([case("m.a"), case("m.b")], [case("m.a"), case("m.b", "skipped")])
    assert (trial.n_compared, "1 tests ran on one side only" in "\n".join(render_trial(trial, {}))) == (2, True)


def test_a_test_job_without_pytest_needs_no_report_and_seeds_are_compared_each(tmp_path: Path) -> None:
    path = write_matrix(tmp_path / "matrix.toml", {"a": ("make", "test")}, kind="test")
    path.write_text(f"{path.read_text()}seeds = [0, 1]\n")
    matrix, jobs = plan_trial(with_time_limit(read_matrix(path), None), "current", "current")
    assert [entry.tests for entry in matrix.job] == [None, None]
    outcomes = [make_outcome(job, state="completed", exit_code=0, started_at="x") for job in jobs]
    night = make_night(tmp_path / "night", [(outcome, None) for outcome in outcomes])
    trial = compare_sides(read_night_results(night))
    assert trial.after.environment == "current"


def test_what_could_not_be_tried_stands_beside_the_result() -> None:
    trial = Trial(folder=Path("logs"), before=ended("1"), after=ended("2"))
    lines = list(render_trial(trial, {}, ["JAX 3 needs Python 4"]))
    assert lines[-2:] == ["JAX 3 needs Python 4", "Logs: logs"]
    document = render_json(trial, ["JAX 3 needs Python 4"])
    assert isinstance(document, dict)
    assert document["notes"] == ["JAX 3 needs Python 4"]


def case(name: str, state: CaseState = "passed", message: str | None = None) -> Case:
    return Case(name=name, state=state, message=message, node=f"{name.split('.')[0]}.py::x" if "." in name else None)


MISSES = "AttributeError: module 'jax.lib' has no attribute 'old'"
REMOVAL = Removal(name="jax.lib.old", last="0.9.1", release="0.9.2")


def compare(before: list[Case], after: list[Case]) -> Trial:
    other = case("test_c.test_other")
    suites = {BEFORE: {"lib-tests": Suite(cases=(*before, other))}, AFTER: {"lib-tests": Suite(cases=(*after, other))}}
    return compare_suites({BEFORE: ended("0.9.0"), AFTER: ended("0.10.0")}, suites, Path("logs"))


def test_modules_that_fail_at_import_take_their_tests_along_as_one_cause() -> None:
    before = [
        case("test_a.test_1"),
        case("test_a.test_2", "flaky"),
        case("test_a.test_3", "skipped"),
        case("test_b.C.d"),
    ]
    trial = compare(before, [case("test_a", "failed", MISSES), case("test_b", "failed", MISSES)])
    assert [(one.test, one.node, one.n_tests) for one in trial.broken] == [
        ("test_a", "test_a.py", 2),
        ("test_b", "test_b.py", 1),
    ]
    assert (trial.absent, trial.n_compared, find_exit_code(trial)) == ((), 4, ExitCode.NO)
    lines = list(render_trial(replace(trial, removed={MISSES: REMOVAL}), {"lib-tests": ("pytest",)}))
    assert lines[2:5] == [
        "3 tests failed with jax 0.10.0, not with jax 0.9.0:",
        "  jax 0.9.2 removed jax.lib.old (0.9.1 has it): 2 modules failed at import and took 3 tests along: " + MISSES,
        "    test_a, test_b",
    ]
    words = shlex.split(lines[5])
    assert words[-3:] == ["--", "pytest", "test_a.py"]
    assert re.search(words[words.index("--failure") + 1], f"E   {MISSES} (/env)")
    assert "--deterministic" in words
    assert f"  2 modules failed at import and took 3 tests along: {MISSES}" in list(
        render_trial(trial, {"lib-tests": ()})
    )


@pytest.mark.parametrize(("why", "options"), [(": " + MISSES, ["--failure", MISSES]), ("", [])])
def test_a_command_that_ended_before_its_tests_is_bisected_by_its_own_words(why: str, options: list[str]) -> None:
    trial = compare([case("test_a")], [case("command", "failed", f"exit code 4, expected 0{why}")])
    words = shlex.split(next(line for line in render_trial(trial, {"lib-tests": ("pytest",)}) if "bisect" in line))
    assert words[words.index("--environment") + 2 :] == [
        *(re.sub(r"[^\w :,=-]", ".", word) if " " in word else word for word in options),
        "--deterministic",
        "--",
        "pytest",
        "--collect-only",
    ]


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        ([case("test_a", "failed", "x")], [case("test_a.test_1"), case("test_a.test_2")], "mended"),
        ([case("test_a.test_1", "failed", "y")], [case("test_a", "failed", "x")], "failing"),
        ([case("test_a.test_1", "skipped", "not run within 5 s")], [case("test_a", "failed", "x")], "untimed"),
        ([case("test_a.test_1", "skipped")], [case("test_a", "failed", "x")], "broken"),
        ([case("test_a.b", "skipped", "not run within 5 s")], [case("test_a.b", "failed", "x")], "untimed"),
        ([case("test_a", "failed", "x")], [case("test_a", "failed", "x")], "failing"),
        ([case("test_a.test_1"), case("test_a.test_2")], [case("command", "failed", "exit code 139")], "broken"),
        ([case("test_ab.test_1")], [case("test_a", "failed", "x")], "absent"),
    ],
)
def test_a_failed_module_is_compared_with_its_tests(before: list[Case], after: list[Case], kind: str) -> None:
    trial = compare(before, after)
    lists = {name: len(getattr(trial, name)) for name in ("broken", "mended", "failing", "untimed", "absent")}
    assert lists == {**dict.fromkeys(lists, 0), kind: 2 if kind == "absent" else 1}


@pytest.mark.parametrize(
    ("jax", "step", "earlier"),
    [("0.9.2", 1, "0.9.1"), ("0.9.2", 2, "0.9.0"), ("0.9.0", 8, "0.8.0"), ("0.8.0", 1, None)],
)
def test_earlier_releases_are_tried_until_a_test_passes(jax: str, step: int, earlier: str | None) -> None:
    releases = ["0.8.0", "0.9.0", "0.9.1", "0.9.2", "0.10.0"]
    trial = Trial(folder=Path("logs"), before=ended(jax, 0), after=ended("0.10.0", 0))
    assert find_earlier_jax(trial, releases, step) == earlier
    assert find_earlier_jax(replace(trial, before=ended(jax)), releases, step) is None
    assert find_earlier_jax(replace(trial, before=ended(jax, 0, None)), releases, step) is None  # it did not complete
    lacking = [case("test_a", "failed", "ModuleNotFoundError: No module named 'einops'")]  # which no JAX brings
    assert find_earlier_jax(replace(trial, failing=compare(lacking, lacking).failing), releases, step) is None


def test_an_earlier_jax_with_which_fewer_tests_pass_is_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failing = [case("test_a.b", "failed", MISSES)]
    first = replace(compare(failing, failing), before=ended("0.9.2", 1), removed={MISSES: REMOVAL})
    trials = iter([first, replace(first, before=ended("0.9.1", 0), removed={})])
    monkeypatch.setattr("nightjar_ci.projects.trial.run_trial", lambda *_: next(trials))
    monkeypatch.setattr("nightjar_ci.projects.trial.plan_trial", lambda *_: (None, []))
    monkeypatch.setattr("nightjar_ci.projects.trial.explain_removals", lambda trial, _: trial)
    sides = Sides(before="uv:jax==0.9.2", after="uv:jax==0.10.0", why="", base="uv:numpy")
    question = _Question(sides=sides, files=[], releases=["0.9.1", "0.9.2"], notes=[], searches=True)
    (tmp_path / "matrix.toml").write_text(MATRIX)
    assert _run(read_matrix(tmp_path / "matrix.toml"), question, tmp_path, Environments()) is first
    assert "trying jax 0.9.1" in capsys.readouterr().err


def test_failures_on_both_sides_come_first_grouped_by_their_error() -> None:
    paths = [f"ImportError: cannot import name 'old' from 'jax.lib' (/env/{side}/jax/lib/__init__.py)" for side in "ab"]
    failing = [case("test_a", "failed", paths[0]), case("test_b", "failed", paths[1]), case("test_d.e", "failed", "z")]
    trial = compare([*failing, case("test_f.g")], [*failing, case("test_f.g", "failed", "broken")])
    lines = list(render_trial(trial, {"lib-tests": ("pytest",)}))
    assert lines[2:8] == [
        "2 modules and 1 test failed with both:",
        "  2 modules failed at import: ImportError: cannot import name 'old' from 'jax.lib'",
        "    test_a, test_b",
        "  test_d.e: z",
        "1 test failed with jax 0.10.0, not with jax 0.9.0:",
        "  test_f.g: broken",
    ]
    command = "nightjar-ci bisect --good jax==0.9.0 --bad jax==0.10.0 --environment current -- pytest test_f.py::x"
    assert lines[8:10] == [
        "If they passed with an older JAX, --against jax==VERSION finds what broke them.",
        f"Find the change: {command}",
    ]


def test_a_removed_name_on_both_sides_is_an_answer_and_names_the_jax_to_compare_with() -> None:
    failing = [case("test_a", "failed", MISSES).model_copy(update={"quote": "a.py:1: in <module>"})]
    trial = replace(compare(failing, failing), before=ended("0.9.2"))
    releases = ["0.8.0", "0.9.0", "0.9.1", "0.9.2", "0.10.0"]
    assert (find_exit_code(trial), find_earlier_jax(trial, releases, 1)) == (ExitCode.OK, None)
    assert f"  1 module failed at import: {MISSES}" in render_trial(trial, {})
    lost = replace(trial, removed={MISSES: REMOVAL})
    assert (find_exit_code(lost), find_earlier_jax(lost, releases, 1)) == (ExitCode.NO, "0.9.1")
    assert find_earlier_jax(replace(lost, before=ended("0.9.0")), releases, 1) is None  # it fails for more than that
    document = render_json(lost)
    assert isinstance(document, dict)
    assert document["removed"] == {MISSES: {"name": "jax.lib.old", "last": "0.9.1", "release": "0.9.2"}}


@pytest.mark.slow
def test_try_says_at_its_start_that_a_newer_jax_needs_another_python(tmp_path: Path) -> None:
    (tmp_path / "test_lib.py").write_text("def test_a(): pass\n")
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    needs = f"!={here}.*,>=3.9"
    files: list[dict[str, object]] = [
        {"filename": f"jax-{version}-py3-none-any.whl", "url": "x", "hashes": {}, "requires-python": python}
        for version, python in (("0.9.0", None), ("0.9.1", ">=3.9"), ("1.0", needs))
    ]
    page = json.dumps({"files": files}).encode()
    content_type = {"Content-Type": "application/vnd.pypi.simple.v1+json"}
    with serve(lambda method, path, authorization: (200, content_type, page)) as index:
        environ = {**os.environ, "UV_DEFAULT_INDEX": index.url}

        def try_project(*words: str, exit_code: int = 0) -> str:
            done = call(main, "try", ".", "--dry-run", *words, cwd=tmp_path, environ=environ)
            assert done.returncode == exit_code, done.stderr
            return done.stderr + done.stdout

        note = f"with this Python {here} the newest is 0.9.1"
        assert note in try_project()
        assert note not in try_project("--with", "jax==0.9.0", "--against", "jax==0.9.1")
        if find_python_version(needs) is not None:  # the newest release is that of the project's Python
            (tmp_path / "pyproject.toml").write_text(f'[project]\nname = "lib"\nrequires-python = "{needs}"\n')
            assert "jax==1.0" in try_project("--against", "jax==0.9.1")
            assert note not in try_project()
        (tmp_path / "pyproject.toml").write_text('[project]\nname = "lib"\nrequires-python = "three"\n')
        assert "requires-python 'three' is not valid" in try_project(exit_code=2)


def test_init_writes_once_and_try_reads_what_it_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "test_lib.py").write_text("def test_a(): pass\n")

    shown = call(main, "init", "--dry-run", cwd=tmp_path)
    assert (shown.returncode, sorted(path.name for path in tmp_path.iterdir())) == (0, ["test_lib.py"])
    written = call(main, "init", cwd=tmp_path)
    paths = written.stdout.split()
    assert paths == ["ci/nightjar/matrix.toml", ".github/workflows/nightjar.yml"]
    assert all((tmp_path / path).read_text() in shown.stdout for path in paths)
    again = call(main, "init", cwd=tmp_path)
    assert again.returncode == 2
    assert "exists already" in again.stderr
    assert "--force" in again.stderr
    assert call(main, "init", "--force", "--minutes", "5", "--env", "N={1}", cwd=tmp_path).returncode == 0
    path = tmp_path / "ci" / "nightjar" / "matrix.toml"
    path.write_text(f'{path.read_text()}[[job.tests.known_failure]]\ntest = "a.b"\nreason = "waits"\nissue = "#7"\n')
    assert call(main, "init", "--force", "--env", "M=2", cwd=tmp_path).returncode == 0
    [job] = expand(read_matrix(path))
    assert job.tests is not None
    assert (job.tests.limit_s, dict(job.env)) == (300, {"N": "{{1}}", "M": "2"})  # what an earlier call was told stays
    assert job.tests.known_failure == (KnownFailure(test="a.b", reason="waits", issue="#7"),)
    path.write_text(path.read_text().replace('kind = "test"\n', ""))  # its tests say so
    monkeypatch.chdir(tmp_path)
    before, _ = plan_trial(_read_matrix(look_at(tmp_path, ["M={3}"]), None), "current", "current")[1]
    assert (before.env["N"], before.env["M"], before.kind) == ("{{1}}", "{{3}}", "test")
    other = '[[job]]\nname = "other"\nkind = "test"\ncommand = ["pytest"]\nenvironment = "uv:numpy==1.26"\n'
    path.write_text(f"{path.read_text()}\n{other}")
    tried = call(main, "try", ".", "--dry-run", "--with", "current", "--against", "current", cwd=tmp_path)
    assert "No job is tried in uv:numpy==1.26, though" in tried.stderr
