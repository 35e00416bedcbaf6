"""Jobs that run at the same time, on this machine and beside other runs; what is left when nightjar-ci is killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nightjar_ci.errors import NightjarError
from nightjar_ci.formats.night_folder import job_folder, read_night
from nightjar_ci.night.matrix import read_matrix
from nightjar_ci.night.run import run_night
from nightjar_ci.settings import read_settings
from nightjar_ci.store import open_store
from tests.ci.jobs import GOOD, python, wait_for, write_matrix

# Ends well once the other job has started, too.
MEET = """
import os, pathlib, time
here = pathlib.Path(os.environ["NIGHTJAR_OUT"])
(here / "here").touch()
deadline = time.monotonic() + 60
while len(list(here.parent.glob("*/here"))) < 2 and time.monotonic() < deadline:
    time.sleep(0.02)
assert len(list(here.parent.glob("*/here"))) == 2
"""
# Counts how often it runs, in a file beside the night.
ONCE = (
    """
import os, pathlib
with (pathlib.Path(os.environ["NIGHTJAR_OUT"]).parents[2] / os.environ["NIGHTJAR_JOB"]).open("a") as file:
    file.write("x")
"""
    + GOOD
)


def start(state: Path, matrix: Path, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "nightjar_ci", "run", str(matrix), *options],
        env={**os.environ, "NIGHTJAR_STATE_DIR": str(state)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_two_workers_run_two_jobs_at_once_and_no_third(tmp_path: Path) -> None:
    matrix = read_matrix(write_matrix(tmp_path / "m.toml", {"a": python(MEET + GOOD), "b": python(MEET + GOOD)}))
    night = run_night(matrix, tmp_path / "night", workers=2)
    assert {one.job: one.state for one in night.jobs} == {"a": "completed", "b": "completed"}
    alone = read_matrix(write_matrix(tmp_path / "m.toml", {"a": python(MEET), "b": python(MEET)}, timeout_s=1))
    assert run_night(alone, tmp_path / "alone").jobs[0].state == "timeout"


def test_an_error_of_a_worker_ends_the_night_and_its_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = read_matrix(write_matrix(tmp_path / "m.toml", {"a": ("sleep", "60"), "b": python(GOOD)}))

    def fail(*_: object) -> None:
        raise NightjarError("this went wrong")

    monkeypatch.setattr("nightjar_ci.night.run_job.read_checked", fail)
    begun = time.monotonic()
    with pytest.raises(NightjarError, match="this went wrong"):
        run_night(matrix, tmp_path / "night", workers=2)
    assert time.monotonic() - begun < 50
    assert read_night(tmp_path / "night").finished_at is None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_run_that_is_killed_goes_on_where_it_was(tmp_path: Path, number: signal.Signals) -> None:
    path = write_matrix(
        tmp_path / "m.toml",
        {"a": python(ONCE), "b": python(ONCE), "hang": ("sh", "-c", "echo $$ >$0/pid; exec sleep 60", "{out}")},
    )
    night = tmp_path / "night"
    running = start(tmp_path / "state", path, "--out", str(night), "--workers", "2")
    wait_for((job_folder(night, "hang") / "pid").exists)
    wait_for(lambda: len(read_night(night).jobs) == 2)
    running.send_signal(number)
    running.communicate(timeout=60)
    assert running.returncode == {signal.SIGINT: 130, signal.SIGKILL: -9}[number]
    assert read_night(night).finished_at is None
    left = int((job_folder(night, "hang") / "pid").read_text())
    wait_for(lambda: not Path("/proc", str(left)).exists(), 10)
    write_matrix(path, {"a": python(ONCE), "b": python(ONCE), "hang": python(ONCE)})
    resumed = start(tmp_path / "state", path, "--out", str(night), "--resume")
    _, errors = resumed.communicate(timeout=60)
    assert resumed.returncode == 0, errors
    assert {one.job: one.state for one in read_night(night).jobs} == dict.fromkeys(("a", "b", "hang"), "completed")
    assert [(tmp_path / job).read_text() for job in ("a", "b", "hang")] == ["x", "x", "x"]


def test_two_runs_on_one_store_do_not_disturb_each_other(tmp_path: Path) -> None:
    jobs = {f"j{number}": python(GOOD) for number in range(6)}
    path = write_matrix(tmp_path / "m.toml", jobs)
    runs = [start(tmp_path / "state", path, "--workers", "2") for _ in range(2)]
    printed = [run.communicate(timeout=120) for run in runs]
    assert [run.returncode for run in runs] == [0, 0], printed
    nights = [Path(out.strip()) for out, _ in printed]
    assert nights[0] != nights[1]
    for night in nights:
        assert {one.job: one.state for one in read_night(night).jobs} == dict.fromkeys(jobs, "completed")
    store = open_store(read_settings({"NIGHTJAR_STATE_DIR": str(tmp_path / "state")}))
    assert {(one.id, one.completed, one.runs) for one in store.nights()} == {(night.name, 6, 6) for night in nights}
    assert all(len(store.history(job, "loss")) == 2 for job in jobs)
    store.close()
