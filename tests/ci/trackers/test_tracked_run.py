"""What a tracker gets to know of a night."""

from __future__ import annotations

from pathlib import Path

from nightjar_ci.formats.night_results import read_night_results
from nightjar_ci.trackers.tracked_run import read_runs
from tests.ci.nights import CELL, failed, make_night, outcome, record


def test_a_run_has_every_measure_of_its_job(tmp_path: Path) -> None:
    result = record(config={"model": {"width": 8, "norm": {}}}, values=[3.0, 2.5], steps=[10, 20])
    (run,) = read_runs(read_night_results(make_night(tmp_path, [(outcome(), result)])))
    assert (run.key, run.completed) == (f"2026-11-21T0300-1a2b/{CELL}-s0", True)
    assert run.curves["loss"] == [(10, 3.0), (20, 2.5)]
    assert run.samples["step_time"] == (0.05, 0.051, 0.049)  # the first of four was warm-up
    assert run.scalars["train_step.flops"] == 1.5e9
    assert run.scalars["train_step.instructions"] == 24 + 76 + 30
    assert run.scalars["train_step.temp_bytes"] == 100_000
    assert "train_step.peak_bytes" not in run.scalars  # not known
    assert (run.config["model.width"], run.config["model.norm"], run.config["seed"]) == (8, {}, 0)
    assert run.tags["package.jaxlib"] == "0.10.2"
    assert (run.ended - run.started).total_seconds() == 12.5


def test_jobs_are_chosen_by_a_glob_and_a_job_without_a_result_is_no_run(tmp_path: Path) -> None:
    jobs = [
        (outcome(), record()),
        (failed(f"{CELL}-s1"), record(1, status="diverged")),
        (failed("other-s0"), None),
    ]
    results = read_night_results(make_night(tmp_path, jobs))
    assert [(run.job, run.completed) for run in read_runs(results)] == [(f"{CELL}-s0", True), (f"{CELL}-s1", False)]
    assert [run.job for run in read_runs(results, "*-s1")] == [f"{CELL}-s1"]
