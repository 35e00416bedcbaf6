"""Writers that are killed a hundred times, two at once: what was committed stays, and no half night looks whole."""

import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from sqlalchemy import event, text

from nightjar_ci.errors import StoreError
from nightjar_ci.settings import read_settings
from nightjar_ci.store import Store, StoredRun, open_store
from nightjar_ci.store.engine import open_engine
from tests.ci.nights import outcome, record
from tests.ci.store.test_store import night

KILLS, JOBS = 100, 6
# Forks writers from a process that has imported everything, and kills each once more bytes are said to be committed:
# by progress and not by time, so that a slow machine kills in the same places. What a writer says ends with a dot: one
# that is killed may have written half of it.
KILLER = """
import os, random, signal, sys, time
from pathlib import Path
from nightjar_ci.formats.job import Job
from nightjar_ci.formats.night_folder import Night
from nightjar_ci.formats.outcome import make_outcome
from nightjar_ci.formats.run_record import read_run
from nightjar_ci.settings import read_settings
from nightjar_ci.store import StoredRun, open_store

url, folder, kills, jobs = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
record = read_run(folder / "result.json")
open_store(read_settings({"NIGHTJAR_DATABASE_URL": url})).close()  # so that a writer imports nothing any more

def write(writer, opened):
    store = open_store(read_settings({"NIGHTJAR_DATABASE_URL": url}))
    os.write(opened, b"x")
    log = os.open(folder / "committed", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    killer, number = os.getppid(), -1
    while os.getppid() == killer:  # so that no writer outlives it
        number += 1
        night = Night(id=f"w{writer}n{number}", matrix="m", started_at="2026-11-21T03:00:00+00:00",
                      finished_at="2026-11-21T04:00:00+00:00", git=None, jobs=())
        runs = []
        for seed in range(jobs):
            job = Job(id=f"demo-s{seed}", cell="demo", replicate=seed, kind="train", command=("true",), env={},
                      environment="current", executor="local", timeout_s=1)
            runs.append(StoredRun(outcome=make_outcome(job, state="completed", started_at=""), record=record))
        if number % 2:  # as `run` does: job by job, and finished at the end
            store.add_night(night.model_copy(update={"finished_at": None}))
            for run in runs:
                store.add_run(night.id, run.outcome, run.record)
                os.write(log, f"\\n{night.id} {run.outcome.job} .".encode())
        store.add_whole_night(night, runs)
        os.write(log, "".join(f"\\n{night.id} {run.outcome.job} ." for run in runs).encode())

def start(writer):
    reading, opened = os.pipe()
    pid = os.fork()
    if pid == 0:
        write(writer, opened)
    os.close(opened)
    return pid, reading

def said():
    return (folder / "committed").stat().st_size if (folder / "committed").exists() else 0

luck = random.Random(5)
for pair in range(kills // 2):
    writers = [start(2 * pair), start(2 * pair + 1)]
    for pid, opened in writers:
        os.read(opened, 1)
        os.close(opened)
        enough, patience = said() + luck.randrange(400), time.monotonic() + 10
        while said() < enough and time.monotonic() < patience:
            time.sleep(0.001)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
"""


def check_that_nothing_is_lost(url: str, tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(record(0, values=[3.0, 2.0]).model_dump_json(by_alias=True))
    open_store(read_settings({"NIGHTJAR_DATABASE_URL": url})).close()
    killer = [sys.executable, "-c", KILLER, url, str(tmp_path), str(KILLS), str(JOBS)]
    subprocess.run(killer, check=True, timeout=1500)
    said = (tmp_path / "committed").read_text().splitlines()
    committed = {tuple(line.split()[:2]) for line in said if line.endswith(" .")}
    assert len(committed) > KILLS
    engine = open_engine(url)
    with engine.connect() as connection:
        stored = Counter(map(tuple, connection.execute(text("SELECT night, job FROM outcomes")).all()))
        runs = connection.execute(text("SELECT count(*) FROM run")).scalar_one()
        documents = connection.execute(text("SELECT count(*) FROM document")).scalar_one()
        values = Counter(connection.execute(text("SELECT night FROM history WHERE measure = 'loss'")).scalars())
    engine.dispose()
    assert committed <= stored.keys()
    assert set(stored.values()) == {1}
    assert runs == documents == len(stored)
    assert dict(values) == dict(Counter(night for night, _ in stored))  # no run without its measures
    store = open_store(read_settings({"NIGHTJAR_DATABASE_URL": url}))
    nights = store.nights()
    assert all(night.runs == JOBS for night in nights if night.finished_at is not None)
    assert any(night.finished_at is None for night in nights), "no writer was killed within a night"
    store.close()


@pytest.mark.slow
def test_sqlite_loses_nothing(tmp_path: Path) -> None:
    check_that_nothing_is_lost(f"sqlite:///{tmp_path / 'store.sqlite'}", tmp_path)
    engine = open_engine(f"sqlite:///{tmp_path / 'store.sqlite'}")
    with engine.connect() as connection:
        assert connection.execute(text("PRAGMA integrity_check")).scalar() == "ok"
    engine.dispose()


@pytest.mark.slow
def test_postgresql_loses_nothing(postgres: str, tmp_path: Path) -> None:
    check_that_nothing_is_lost(postgres, tmp_path)


def run(cell: str, loss: float) -> StoredRun:
    return StoredRun(outcome=outcome(f"{cell}-s0"), record=record(0, values=[loss], job=f"{cell}-s0"))


def fail_next_commit(store: Store) -> None:
    """Makes the next commit fail, as a disk does that has an error when the journal is written."""

    @event.listens_for(store._engine, "commit", once=True)
    def _(_: object) -> None:
        raise sqlite3.OperationalError("disk I/O error")


def test_a_series_whose_commit_failed_gets_a_number_of_its_own(tmp_path: Path) -> None:
    store = open_store(read_settings({"NIGHTJAR_STATE_DIR": str(tmp_path)}))
    store.add_night(night(1))
    first, second = run("first", 1.0), run("second", 2.0)
    fail_next_commit(store)
    with pytest.raises((StoreError, sqlite3.OperationalError)):
        store.add_run(night(1).id, first.outcome, first.record)
    store.add_run(night(1).id, second.outcome, second.record)
    store.add_whole_night(night(1), [first, second])
    for cell, loss in (("first", 1.0), ("second", 2.0)):
        assert [point.value for point in store.history(cell, "loss")] == [loss]
    store.close()
