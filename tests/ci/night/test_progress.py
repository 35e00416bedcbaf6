"""What a log shows of a night while it runs."""

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from nightjar_ci.formats.suite import SuiteOptions
from nightjar_ci.night.matrix import expand, read_matrix
from nightjar_ci.night.progress import Countdown, NightProgress
from nightjar_ci.night.run import run_night
from nightjar_ci.night.run_job import describe_time, run_job
from tests.ci.jobs import make_job, python, write_matrix
from tests.ci.nights import outcome


def test_a_log_shows_the_first_line_of_each_job_at_once_and_the_next_only_after_a_while() -> None:
    log = io.StringIO()
    with NightProgress(2, Console(file=log)) as progress:
        for job in ("a", "b"):
            progress.start(job)
            progress.on_line(f"making what {job} needs")
            progress.on_line("more")
            progress.end(outcome(job))
    lines = [line for line in log.getvalue().splitlines() if "completed" not in line]
    assert lines == ["[1/2] a", "  making what a needs", "[2/2] b", "  making what b needs"]


def test_a_job_keeps_its_number_and_each_step_is_shown_with_its_job() -> None:
    log = io.StringIO()
    with NightProgress(3, Console(file=log)) as progress:
        progress.start("a")
        progress.start("b", " in uv:jax")
        for step in ("making", "made", "running"):
            progress.on_step_of("a", step)
        progress.on_line_of("a", "quickly printed")
        progress.end(outcome("b"))
        progress.on_step_of("a", "still running")
        progress.end(outcome("a"))
        progress.end(outcome("queued"))
    shown = [re.sub(r" in [\d.]+ s$", "", line) for line in log.getvalue().splitlines()]
    assert shown == [
        "[1/3] a",
        "[2/3] b in uv:jax",
        "  a: making",
        "  a: made",
        "  a: running",
        "[2/3] b: completed",
        "  a: still running",
        "[1/3] a: completed",
        "[3/3] queued: completed",
    ]


def test_a_night_counts_down_at_the_pace_of_the_jobs_that_have_ended() -> None:
    log = io.StringIO()
    with NightProgress(3, Console(file=log), Countdown({"a": 60.0, "b": 120.0, "c": 60.0})) as progress:
        for job, took_s in (("a", 30.0), ("b", 120.0), ("c", 50.0)):
            progress.start(job)
            progress.end(outcome(job).model_copy(update={"duration_s": took_s}))
    assert [line for line in log.getvalue().splitlines() if "left" in line] == [
        "[1/3] a, about 4 min left",
        "[2/3] b, about 90 s left",  # at half of the usual time
        "[3/3] c, about 50 s left",
    ]


def test_only_known_durations_give_a_countdown(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    matrix = read_matrix(write_matrix(tmp_path / "m.toml", {name: python("pass") for name in ("a", "b")}))
    known = [replace(job, usual_s=60.0) for job in expand(matrix)]
    run_night(matrix, tmp_path / "known", jobs=known)
    assert capfd.readouterr().err.splitlines()[0].endswith(f": 2 jobs of {matrix.name}, about 2 min")
    run_night(matrix, tmp_path / "unknown", jobs=[known[0], replace(known[1], usual_s=None)])
    assert " left" not in capfd.readouterr().err


def test_tests_say_when_they_begin_and_how_long_they_may_take() -> None:
    job = make_job(kind="test", timeout_s=3600.0)
    assert describe_time(job) == "running its tests, at most 60 min"
    limited = make_job(kind="test", timeout_s=3600.0, tests=SuiteOptions(limit_s=600))
    assert describe_time(limited) == "running its tests; none begins after 10 min"


def test_two_workers_show_the_tests_of_both_jobs(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = write_matrix(tmp_path / "m.toml", {name: python("pass") for name in ("a", "b")}, kind="test")
    run_night(read_matrix(path), tmp_path / "night", workers=2)
    lines = capfd.readouterr().err.splitlines()
    assert sum("running its tests, at most" in line for line in lines) == 2
    for name in ("a", "b"):
        [started] = [line for line in lines if line.endswith(f"] {name}")]
        assert any(line.startswith(f"{started}: ") for line in lines)


def test_what_a_job_prints_on_stdout_is_progress_too(tmp_path: Path) -> None:
    said: list[str] = []
    program = "import time; print('....... [ 5%]', flush=True); time.sleep(1)"
    run_job(make_job(*python(program)), tmp_path / "job", on_line=said.append)
    assert "....... [ 5%]" in said
