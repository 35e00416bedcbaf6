"""Is a rung good or bad, or can its test not tell?"""

from pathlib import Path
from typing import Any

import pytest

from nightjar_ci.bisect.probing.classify import (
    Classification,
    Classifier,
    ExitCode,
    Metric,
    check_pattern,
    swap_good_and_bad,
)
from nightjar_ci.errors import InputError
from nightjar_ci.formats.outcome import Outcome, make_outcome
from tests.ci.jobs import make_job
from tests.ci.nights import record


def ended(**changes: Any) -> Outcome:
    state = "failed" if changes.get("exit_code") else "completed"
    values: dict[str, Any] = {"state": state, "exit_code": 0, "started_at": "2026-11-21", "duration_s": 1.0}
    return make_outcome(make_job("true"), **(values | changes))


def read(classifier: Classifier, folder: Path, stdout: str = "", stderr: str = "", **changes: Any) -> Classification:
    (folder / "stdout.log").write_text(stdout)
    (folder / "stderr.log").write_text(stderr)
    return classifier.read(ended(**changes), folder, None)


TRACEBACK = 'Traceback (most recent call last):\n  File "t.py", line 1, in <module>\n'
COULD_NOT_RUN: dict[str, dict[str, Any]] = {
    "git bisect's skip": {"exit_code": 125},
    "not executable": {"exit_code": 126},
    "no such command": {"exit_code": 127},
    "a child was killed": {"exit_code": 139},
    "crash": {"exit_code": None, "signal": "SIGSEGV", "state": "killed"},
    "time-out": {"exit_code": None, "signal": "SIGTERM", "state": "timeout"},
    "no environment": {"exit_code": None, "state": "not_started", "message": "no jaxlib"},
    "import error": {"exit_code": 1, "stderr": TRACEBACK + "ImportError: cannot import name 'xmap' from 'jax'\n"},
    "no module": {"exit_code": 1, "stderr": TRACEBACK + "ModuleNotFoundError: No module named 'flax'\n"},
    "no program": {"exit_code": 1, "stderr": "/venv/bin/python3.12: No module named pytest\n"},
    "no file": {"exit_code": 2, "stderr": "python: can't open file '/a/b.py': [Errno 2] No such file or directory\n"},
    "no plugin": {
        "exit_code": 4,
        "stderr": "ERROR: usage: python -m pytest [options] [file_or_dir] [file_or_dir] [...]\n"
        "python -m pytest: error: unrecognized arguments: -n\n  inifile: None\n  rootdir: /a\n",
    },
    "disk": {"exit_code": 1, "stderr": "OSError: [Errno 28] No space left on device\n"},
    "memory": {"exit_code": 1, "stderr": TRACEBACK + "MemoryError\n"},
    "memory of a GPU": {"exit_code": 1, "stderr": TRACEBACK + "jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Out\n"},
    "pytest collected nothing": {"exit_code": 2, "stdout": "Interrupted: 1 error during collection\n1 error in 0.1s\n"},
    "pytest found nothing": {"exit_code": 5, "stdout": "no tests ran in 0.01s\n"},
}


@pytest.mark.parametrize("name", COULD_NOT_RUN)
def test_a_test_that_could_not_run_cannot_tell_and_says_why(name: str, tmp_path: Path) -> None:
    for classifier in (ExitCode(), Metric(better="lower", name="time")):
        classification = read(classifier, tmp_path, **COULD_NOT_RUN[name])
        assert (classification.answer, classification.value) == ("cannot_tell", None)
        assert classification.why


def test_a_test_that_ran_is_good_or_bad_by_its_exit_code(tmp_path: Path) -> None:
    assert read(ExitCode(), tmp_path).answer == "good"
    assert read(ExitCode(), tmp_path, exit_code=1).answer == "bad"
    assert read(ExitCode(), tmp_path, exit_code=255).answer == "bad"  # sys.exit(-1), and no signal
    assert read(ExitCode(), tmp_path, exit_code=1, stderr=TRACEBACK + "AssertionError: 3 != 4\n").answer == "bad"
    handled = TRACEBACK + "ImportError: no torch\n\nAssertionError: wrong loss\n"
    assert read(ExitCode(), tmp_path, exit_code=1, stderr=handled).answer == "bad"


@pytest.mark.parametrize(("kind", "name"), [("crash", "crash"), ("timeout", "time-out"), ("import", "import error")])
def test_what_is_looked_for_counts_as_bad(kind: Any, name: str, tmp_path: Path) -> None:
    assert read(ExitCode(bad_too=(kind,)), tmp_path, **COULD_NOT_RUN[name]).answer == "bad"
    if kind != "import":  # whose reason is the test's own line
        assert f"--failure {kind} counts it as bad" in str(read(ExitCode(), tmp_path, **COULD_NOT_RUN[name]).why)
    assert read(ExitCode(failure="EXHAUSTED"), tmp_path, **COULD_NOT_RUN["memory of a GPU"]).answer == "bad"


@pytest.mark.parametrize(("kind", "answer"), [("crash", "bad"), ("timeout", "cannot_tell"), ("import", "cannot_tell")])
def test_a_crash_behind_a_shell_script_counts_as_a_crash_alone(kind: Any, answer: str, tmp_path: Path) -> None:
    assert read(ExitCode(bad_too=(kind,)), tmp_path, **COULD_NOT_RUN["a child was killed"]).answer == answer


@pytest.mark.parametrize(
    ("stdout", "value"),
    [
        ("time=3.5\n", 3.5),
        ("time: 1e-3 s\n", 0.001),
        ("time = -2\nmore\ntime=7\n", 7.0),
        ("step 3: time=1_000 other_time=2\n", 1000.0),
        ("Time=4\n", 4.0),
    ],
)
def test_the_last_value_printed_counts(stdout: str, value: float, tmp_path: Path) -> None:
    assert read(Metric(better="lower", name="time"), tmp_path, stdout).value == value


@pytest.mark.parametrize(
    "stdout", ["", "uptime=3\n", "time=\n", "time=fast\n", "time=nan\n", "time=inf\n", "time=3x4\n"]
)
def test_a_missing_or_endless_metric_cannot_tell(stdout: str, tmp_path: Path) -> None:
    classification = read(Metric(better="lower", name="time"), tmp_path, stdout)
    assert (classification.answer, classification.value) == ("cannot_tell", None)
    assert classification.why is not None
    assert "time" in classification.why


def test_a_metric_of_another_name_is_named(tmp_path: Path) -> None:
    classification = read(
        Metric(better="lower", name="time"), tmp_path, "step=1 us_per_turn=0.5\nstep=2 us_per_turn=0.4\n"
    )
    assert classification.why == "it printed no time=VALUE, but step, us_per_turn"


def test_a_metric_of_a_test_that_failed_is_not_trusted(tmp_path: Path) -> None:
    assert read(Metric(better="lower", name="time"), tmp_path, "time=1\n", exit_code=1).answer == "cannot_tell"


def test_a_regular_expression_finds_the_number(tmp_path: Path) -> None:
    classification = read(
        Metric(better="lower", pattern=r"took ([\d.,]+) ms"), tmp_path, "took 1 ms\ntook 2,500.5 ms\n"
    )
    assert classification.value == 2500.5
    for pattern in ("took", "(a)(b)", "("):
        with pytest.raises(InputError, match="--metric-regex"):
            check_pattern(pattern, "--metric-regex", groups=1)


def test_a_metric_is_read_from_the_result(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(record(0, values=[5.5, 5.1, 4.8]).model_dump_json(by_alias=True))
    assert read(Metric(better="lower", name="loss"), tmp_path).value == 4.8


def test_a_search_for_a_fix_swaps_good_and_bad_alone() -> None:
    assert swap_good_and_bad(Classification(answer="good")).answer == "bad"
    assert swap_good_and_bad(Classification(answer="cannot_tell", why="x")) == Classification(
        answer="cannot_tell", why="x"
    )
    assert swap_good_and_bad(Classification(value=3.0)).value == 3.0
