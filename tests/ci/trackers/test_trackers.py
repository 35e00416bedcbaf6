"""Nights in MLflow and W&B, written by their own libraries and read back by other code."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from nightjar_ci.adapters.mlflow import read_mlflow
from nightjar_ci.adapters.wandb import read_wandb
from nightjar_ci.errors import NightjarError
from nightjar_ci.formats.night_results import read_night_results
from nightjar_ci.trackers.tracked_run import read_runs
from nightjar_ci.trackers.wandb import write_wandb
from tests.ci.nights import CELL, failed, make_night, outcome, record

JOB = f"{CELL}-s0"


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both libraries, which are in no environment of the tests."""
    folder = tmp_path_factory.mktemp("libraries")
    command = ["uv", "pip", "install", "--quiet", "--python", sys.executable, "--target", str(folder)]
    subprocess.run([*command, "mlflow-skinny", "wandb"], check=True)
    return folder


@pytest.fixture
def night(tmp_path: Path) -> Path:
    values = [3.0, 2.5, float("nan")]
    jobs = [
        (outcome(), record(values=values, config={"a[0]": {"b": 1}})),
        (failed("x-s1"), record(1, status="diverged", values=[1.0], job="x-s1")),
    ]
    return make_night(tmp_path / "night", jobs)


def track(
    night: Path, *options: str, libraries: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "WANDB_MODE": "offline", "MLFLOW_TRACKING_URI": "sqlite:///mlflow.db", **variables}
    if libraries is not None:
        environ["PYTHONPATH"] = str(libraries)
    command = [sys.executable, "-m", "nightjar_ci", "track", str(night), *options]
    return subprocess.run(command, capture_output=True, text=True, cwd=night.parent, env=environ)


def test_mlflow_has_each_run_once_with_every_value(night: Path, libraries: Path) -> None:
    first = track(night, "--mlflow", "nightly", libraries=libraries)
    assert first.returncode == 0, first.stderr
    assert [line.split(" as ")[0] for line in first.stdout.splitlines()] == [
        f"mlflow: {JOB}: written",
        "mlflow: x-s1: written",
    ]
    second = track(night, "--mlflow", "nightly", libraries=libraries)
    assert second.stdout.splitlines() == [f"mlflow: {JOB}: written before", "mlflow: x-s1: written before"]
    path = night.parent / "mlflow.db"
    with closing(sqlite3.connect(path)) as store:
        runs = store.execute("select name, status, end_time - start_time from runs order by name").fetchall()
        assert runs == [(JOB, "FINISHED", 12_500), ("x-s1", "FAILED", 12_500)]
        select = "select key, step, value, is_nan from metrics join runs using (run_uuid) where name = ? and key in "
        rows = store.execute(f"{select} ('loss', 'step_time', 'train_step.flops') order by key, step", [JOB]).fetchall()
        assert store.execute("select key, value from params where key like 'a%'").fetchall() == [("a_0_.b", "1")]
    assert rows == [
        ("loss", 0, 3.0, 0),
        ("loss", 1, 2.5, 0),
        ("loss", 2, 0.0, 1),
        ("step_time", 0, 0.05, 0),
        ("step_time", 1, 0.051, 0),
        ("step_time", 2, 0.049, 0),
        ("train_step.flops", 0, 1.5e9, 0),
    ]
    assert {"loss", "step_time"} <= {name for read in read_mlflow(path) for name in read.fields}


def test_a_run_that_was_cut_off_is_written_anew(night: Path, libraries: Path) -> None:
    track(night, "--mlflow", "nightly", "--jobs", JOB, libraries=libraries)
    with closing(sqlite3.connect(night.parent / "mlflow.db")) as store, store:
        store.execute("update runs set status = 'RUNNING'")
    again = track(night, "--mlflow", "nightly", "--jobs", JOB, libraries=libraries)
    assert "written as" in again.stdout
    with closing(sqlite3.connect(night.parent / "mlflow.db")) as store:
        states = store.execute("select status, lifecycle_stage from runs order by lifecycle_stage").fetchall()
    assert states == [("FINISHED", "active"), ("RUNNING", "deleted")]


def test_an_offline_run_of_wandb_has_every_value_and_nothing_of_this_environment(night: Path, libraries: Path) -> None:
    done = track(night, "--wandb", "nightly", "--jobs", JOB, libraries=libraries, NIGHTJAR_STATE_DIR="state")
    assert done.returncode == 0, done.stderr
    (path,) = (night.parent / "state" / "wandb").glob("offline-run-*/run-*.wandb")
    rows = [read.fields for read in read_wandb(path)]
    losses = [(row["step"], row["loss"]) for row in rows if "loss" in row]
    assert [step for step, _ in losses] == [0, 1, 2]
    assert [value for _, value in losses[:2]] == [3.0, 2.5]
    assert [(row["sample"], row["step_time"]) for row in rows if "step_time" in row] == [
        (0, 0.05),
        (1, 0.051),
        (2, 0.049),
    ]
    data = path.read_bytes()
    assert JOB.encode() in data
    assert b"train_step/flops" in data
    assert not list(path.parent.rglob("requirements.txt"))
    assert sys.prefix.encode() not in data


class FakeError(Exception):
    """W&B's base of errors."""


@pytest.mark.parametrize(
    ("said", "line"), [("Run (x) already exists, but ...", "wandb: x-s1: written before"), ("not logged in", None)]
)
def test_a_run_that_the_server_has_is_left_and_another_refusal_is_named(
    night: Path, monkeypatch: pytest.MonkeyPatch, said: str, line: str | None
) -> None:
    def refuse(**_: object) -> None:
        raise FakeError(said)

    fake = SimpleNamespace(Error=FakeError, Settings=dict, init=refuse)  # no server is here: its words, of wandb 0.31
    monkeypatch.setitem(sys.modules, "wandb", fake)
    writing = write_wandb(read_runs(read_night_results(night), "x-s1"), "nightly", night.parent / "state")
    if line is None:
        with pytest.raises(NightjarError, match="not logged in"):
            next(writing)
    else:
        assert list(writing) == [line]


def test_a_dry_run_says_what_would_be_written(night: Path) -> None:
    done = track(night, "--mlflow", "nightly", "--dry-run")
    assert done.returncode == 0
    first, second = done.stdout.splitlines()
    assert first.startswith(f"{JOB}: 14 values: loss, step_time, peak_memory, train_step.flops")
    assert second.startswith("x-s1: ")
    assert not (night.parent / "mlflow.db").exists()


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        ([], 2, "no tracker is named"),
        (["--mlflow", "nightly"], 2, "pip install 'nightjar-ci[mlflow]'"),
        (["--wandb", "nightly"], 2, "pip install 'nightjar-ci[wandb]'"),
        (["--mlflow", "nightly", "--jobs", "nothing*"], 2, "no job that matches 'nothing*' has a result"),
    ],
)
def test_wrong_use_is_refused_with_what_helps(night: Path, options: list[str], code: int, message: str) -> None:
    done = track(night, *options)
    assert (done.returncode, done.stdout) == (code, "")
    assert message in done.stderr


def test_a_server_that_is_not_reached_is_named(night: Path, libraries: Path) -> None:
    variables = {"MLFLOW_TRACKING_URI": "http://127.0.0.1:9", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
    done = track(night, "--mlflow", "nightly", libraries=libraries, **variables)
    assert done.returncode == 3
    assert "check MLFLOW_TRACKING_URI" in done.stderr
    assert "Traceback" not in done.stderr
