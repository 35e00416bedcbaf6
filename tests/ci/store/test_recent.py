"""What recent nights of a matrix had, in SQLite and PostgreSQL."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from nightjar_ci.formats.night_folder import Night
from nightjar_ci.formats.outcome import Outcome
from nightjar_ci.formats.run_record import RunRecord
from nightjar_ci.formats.suite import CUT, Case, Suite
from nightjar_ci.settings import read_settings
from nightjar_ci.store import Store, StoredRun, open_store
from nightjar_ci.store.folder import import_night
from nightjar_ci.store.recent import NIGHTS
from tests.ci.nights import CELL, failed, make_night, outcome, record

KEY = (CELL, "step_time", "sample", "s", "lower")
Runs = list[tuple[Outcome, RunRecord | None]]


def add(store: Store, day: int, runs: Runs, matrix: str = "m", **changes: Any) -> None:
    started = f"2026-11-{day:02d}T03:00:00+00:00"
    values: dict[str, Any] = {"id": f"night-{day:02d}", "matrix": matrix, "started_at": started, "git": None}
    night = Night(**(values | {"finished_at": started, "jobs": tuple(one for one, _ in runs)} | changes))
    store.add_whole_night(night, [StoredRun(outcome=one, record=result) for one, result in runs])


def good(seeds: int = 2) -> Runs:
    return [(outcome(f"{CELL}-s{seed}"), record(seed)) for seed in range(seeds)]


def check_recent(store: Store) -> None:
    """Which nights count for a cell, and which of them had its step time."""
    for day in range(1, 8):
        add(store, day, good())
    add(store, 8, [*good(1), (outcome(f"{CELL}-s1"), record(1, step_times=(0.9, 0.05, float("nan"))))])
    add(store, 9, [*good(1), (failed(f"{CELL}-s1"), None)])
    add(store, 10, [], left_out=(CELL,))
    add(store, 11, good(), finished_at=None)
    add(store, 12, good(), matrix="another")
    add(store, 13, [(outcome("vit-s0"), record(0, job="vit-s0"))])  # without the cell, though it was not left out
    add(store, 14, good())
    recent = store.recent_before("night-14")
    counted = [f"night-{day:02d}" for day in (13, 8, 7, 6, 5)]
    assert (list(recent.nights[CELL]), len(counted)) == (counted, NIGHTS)
    had = {night for key, nights in recent.had.items() if tuple(key) == KEY for night in nights}
    assert sorted(had) == [f"night-{day:02d}" for day in (1, 2, 3, 4, 5, 6, 7)]
    assert recent.place("night-01") < recent.place("night-13") < recent.place("night-14")
    assert store.recent_before("unknown").nights == {}


def test_sqlite_knows_what_recent_nights_had(tmp_path: Path) -> None:
    store = open_store(read_settings({"NIGHTJAR_STATE_DIR": str(tmp_path)}))
    check_recent(store)
    store.close()


@pytest.mark.postgres
def test_postgresql_knows_what_recent_nights_had(postgres: str) -> None:
    store = open_store(read_settings({"NIGHTJAR_DATABASE_URL": postgres}))
    check_recent(store)
    store.close()


def test_the_tests_of_the_last_nights_are_remembered_with_those_that_had_no_time(tmp_path: Path) -> None:
    store = open_store(read_settings({"NIGHTJAR_STATE_DIR": str(tmp_path)}))
    for day, cut in ((1, 0), (2, 3), (3, 1)):
        cases = [Case(name=f"t{n}", state="skipped", message=f"{CUT}60 s") for n in range(cut)]
        suite = Suite(cases=(Case(name="t", state="passed"), *cases))
        one = record(0, facts=[]).model_copy(update={"tests": suite})
        add(store, day, [(outcome("lib-tests", cell="lib-tests", kind="test", replicate=None), one)])
    past = {window: store.suites_before("night-03", window=window) for window in (1, 2, 3)}
    nights = {window: [one.night for one in found["lib-tests"]] for window, found in past.items()}
    assert nights == {1: ["night-02"], 2: ["night-01", "night-02"], 3: ["night-01", "night-02"]}
    assert [store.count_cut(f"night-0{day}") for day in (1, 2, 3)] == [0, 3, 1]
    assert store.suites_before("unknown", window=1) == {}
    store.close()


def test_the_documented_views_answer_any_client(tmp_path: Path) -> None:
    settings = read_settings({"NIGHTJAR_STATE_DIR": str(tmp_path)})
    store = open_store(settings)
    runs = [(outcome(f"{CELL}-s{seed}"), record(seed, values=[3.0, 2.0 + seed])) for seed in range(2)]
    night = import_night(store, make_night(tmp_path / "night", [*runs, (failed("vit-s0"), None)]))
    store.add_verdicts(night.id, [{"series": f"{CELL}/loss", "judge": "convergence", "status": "ok", "n": 2}])
    store.close()
    with closing(sqlite3.connect(f"file:{tmp_path}/store.sqlite?mode=ro", uri=True)) as connection:
        losses = "SELECT replicate, value, unit FROM history WHERE measure = 'loss' ORDER BY replicate"
        assert connection.execute(losses).fetchall() == [(0, 2.0, "nats/token"), (1, 3.0, "nats/token")]
        assert connection.execute("SELECT job FROM outcomes WHERE state = 'failed'").fetchall() == [("vit-s0",)]
        assert connection.execute("SELECT status FROM verdicts").fetchall() == [("ok",)]
