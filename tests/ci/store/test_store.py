"""What the store remembers: across processes, versions, full disks, on SQLite and on PostgreSQL."""

import json
import math
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import event

import nightjar_ci.store
from nightjar_ci.errors import StoreError
from nightjar_ci.formats.documents import write_json
from nightjar_ci.formats.night_folder import Night, job_folder, read_night, write_night
from nightjar_ci.formats.outcome import make_outcome
from nightjar_ci.formats.policy import HistoryPolicy
from nightjar_ci.formats.run_record import RunRecord
from nightjar_ci.formats.verdict import Status, Verdict
from nightjar_ci.settings import Settings, read_settings
from nightjar_ci.store import Store, open_store, tables
from nightjar_ci.store.engine import migrate, open_engine
from nightjar_ci.store.folder import import_night
from nightjar_ci.store.history import take_medians
from tests.ci.jobs import make_job
from tests.ci.judges.judged import judge_history
from tests.ci.nights import failed, leave_capture, make_night, outcome, program_facts, record, tally

VERDICT = {"series": "demo/loss", "judge": "convergence", "status": "ok", "explanation": "as before"}


def sqlite_settings(folder: Path) -> Settings:
    return read_settings({"NIGHTJAR_STATE_DIR": str(folder)})


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(sqlite_settings(tmp_path))
    yield opened
    opened.close()


def night(number: int) -> Night:
    return Night(
        id=f"2026-11-{number:02d}T0300-0000",
        matrix="m",
        started_at=f"2026-11-{number:02d}T03:00:00.000+00:00",
        finished_at=None,
        git=None,
        jobs=(),
    )


def add(store: Store, number: int, one: RunRecord | None, *, seed: int = 0, state: str = "completed") -> None:
    job = make_job("true", id=f"demo-s{seed}", replicate=seed)
    store.add_night(night(number))
    ended = make_outcome(job, state=state, started_at="2026-11-21T03:00:00+00:00")  # type: ignore[arg-type]
    store.add_run(night(number).id, ended, one)


def check_memory(store: Store) -> None:
    add(store, 3, record(0, values=[3.0, 2.5], step_times=(9.0, 1.0, 3.0)))
    add(store, 1, record(0, values=[3.0, math.nan]))
    add(store, 1, record(1, values=[3.0, 2.75]), seed=1)
    add(store, 2, None, state="failed")
    points = store.history("demo", "loss")
    assert [(point.night[8:10], point.replicate) for point in points] == [("01", 0), ("01", 1), ("03", 0)]
    assert math.isnan(points[0].value)
    assert [point.value for point in points[1:]] == [2.75, 2.5]
    (step_time,) = [point for point in store.history("demo", "step_time") if point.night == night(3).id]
    assert (step_time.kind, step_time.value, step_time.unit, step_time.better) == ("sample", 2.0, "s", "lower")
    assert [(one.completed, one.runs) for one in store.nights()] == [(2, 2), (0, 1), (1, 1)]
    store.add_verdicts(night(1).id, [VERDICT, VERDICT])
    store.add_verdicts(night(1).id, [VERDICT])


def test_histories_go_by_night_and_seed_and_leave_out_failed_runs(store: Store) -> None:
    check_memory(store)
    assert ("demo", "loss") in store.series()


def test_adding_again_changes_nothing(store: Store, tmp_path: Path) -> None:
    for _ in range(2):
        add(store, 1, record(0))
        store.add_verdicts(night(1).id, [VERDICT])
    with sqlite3.connect(tmp_path / "store.sqlite") as connection:
        counts = {name: connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in ("night", "run")}
        verdicts = connection.execute("SELECT series, judge, status FROM verdict").fetchall()
    connection.close()
    assert counts == {"night": 1, "run": 1}
    assert verdicts == [("demo/loss", "convergence", "ok")]
    assert len(store.history("demo", "loss")) == 1


def test_a_run_added_again_replaces_its_measures(store: Store) -> None:
    add(store, 1, record(0, values=[3.0, 2.0]))
    add(store, 1, record(0, values=[3.0, 1.0]))
    assert [point.value for point in store.history("demo", "loss")] == [1.0]


def test_a_job_that_was_run_again_is_a_further_attempt_and_nothing_is_forgotten(store: Store, tmp_path: Path) -> None:
    add(store, 1, None, state="failed")
    add(store, 1, record(0, values=[3.0, 2.0]))
    add(store, 1, None, state="failed")  # the first one again, as an import of an old copy of the folder would
    (one,) = store.nights()
    assert (one.completed, one.runs) == (1, 1)
    with sqlite3.connect(tmp_path / "store.sqlite") as connection:
        attempts = connection.execute("SELECT attempt, state FROM run ORDER BY attempt").fetchall()
    connection.close()
    assert attempts == [(1, "failed"), (2, "completed")]


def test_series_of_a_night_go_back_by_their_own_nights(store: Store) -> None:
    for number in range(1, 21):
        add(store, number, record(0, values=[3.0, float(number)]))
        add(store, number, record(1, values=[3.0, float(number) + 1]), seed=1)
    add(store, 20, record(2, values=[3.0, math.nan]), seed=2)
    assert store.series_before("2026-01-01T0000-0000") == []
    loss, memory, step_time = store.series_before(night(20).id, window=5)
    assert [one.name for one in (loss, memory, step_time)] == ["demo/loss", "demo/peak_memory", "demo/step_time"]
    assert loss.nights == tuple(night(number).id for number in range(16, 21))
    assert loss.values.tolist() == [16.5, 17.5, 18.5, 19.5, 20.5]
    assert (step_time.unit, step_time.better) == ("s", "lower")
    assert set(loss.environments) == {"1 x cpu; AMD EPYC, 2 cores"}
    (early, *_) = store.series_before(night(3).id, window=5)
    assert early.nights == tuple(night(number).id for number in range(1, 4))


def test_nights_are_in_the_order_of_their_start_whenever_they_were_added(store: Store) -> None:
    for number in (5, 2, 9):
        add(store, number, record(0, values=[float(number)]))
    loss = next(one for one in store.series_before(night(9).id) if one.name == "demo/loss")
    assert loss.values.tolist() == [2.0, 5.0, 9.0]
    assert [one.id for one in store.nights()] == [night(number).id for number in (2, 5, 9)]


def test_another_driver_is_another_environment(store: Store) -> None:
    for number, driver in ((1, None), (2, "570.1"), (3, "580.2")):
        one = record(0)
        environment = one.environment.model_copy(update={"driver": driver})
        add(store, number, one.model_copy(update={"environment": environment}))
    (loss, *_) = store.series_before(night(3).id)
    assert loss.environments == (
        "1 x cpu; AMD EPYC, 2 cores",
        "1 x cpu; driver 570.1; AMD EPYC, 2 cores",
        "1 x cpu; driver 580.2; AMD EPYC, 2 cores",
    )


def test_a_night_that_two_machines_measured_counts_for_the_one_that_tonight_began_on(store: Store) -> None:
    kinds = {1: "ab", 2: "bb", 3: "cb", 4: "ba"}  # of the two seeds
    for number, machines in kinds.items():
        for seed, machine in enumerate(machines):
            one = record(seed, values=[3.0, float(10 * number + seed)])
            environment = one.environment.model_copy(update={"driver": machine})
            add(store, number, one.model_copy(update={"environment": environment}), seed=seed)
    (loss, *_) = store.series_before(night(4).id)
    assert loss.values.tolist() == [11.0, 20.5, 31.0, 40.0]
    assert len(set(loss.environments)) == 1
    (earlier, *_) = store.series_before(night(3).id)
    assert earlier.values.tolist() == [10.0, 20.5, 30.0]
    assert len(set(earlier.environments)) == 3


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 4), st.floats(0, 9) | st.just(math.nan)), min_size=1))
def test_medians_are_those_of_numpy(rows: list[tuple[int, int, float]]) -> None:
    rows = sorted(rows, key=lambda row: row[:2])
    groups: dict[tuple[int, int], list[float]] = {}
    for series, number, value in rows:
        groups.setdefault((series, number), []).append(value)
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    starts, medians = take_medians(columns[0], columns[1], columns[2].astype(float))
    expected = [np.median([v for v in vs if v == v]) if any(v == v for v in vs) else math.nan for vs in groups.values()]
    np.testing.assert_array_equal(medians, expected)
    assert [rows[start][:2] for start in starts] == list(groups)


def test_the_median_of_two_large_numbers_is_infinite_without_a_warning() -> None:
    assert take_medians(np.zeros(2, int), np.zeros(2, int), np.full(2, 1.7e308))[1].tolist() == [math.inf]


def test_a_night_folder_is_stored_whole_with_its_profiles(store: Store, tmp_path: Path) -> None:
    profiled = outcome("gpt-profile", kind="profile", cell="gpt-profile", replicate=None)
    folder = make_night(tmp_path / "n", [(outcome(), record(0)), (profiled, None), (failed("vit-s0"), None)])
    leave_capture(folder, "gpt-profile")
    for _ in range(2):
        import_night(store, folder)
    (one,) = store.nights()
    assert (one.completed, one.runs, one.finished_at) == (2, 3, "2026-11-21T03:05:00+00:00")
    by_name = {series.name: series for series in store.series_before(one.id)}
    assert by_name["gpt-profile/device_time"].values == pytest.approx([0.05])
    assert by_name["gpt-profile/attributed_fraction"].better == "higher"


def leave_profile_night(folder: Path, number: int, devices: list[str], *, trained: bool) -> Path:
    job = "gpt-profile"
    name = night(number).id
    make_night(folder, [(outcome(job, kind="profile", cell=job, replicate=None), None)], name)
    write_night(folder, night(number).model_copy(update={"jobs": read_night(folder).jobs}))
    leave_capture(folder, job, device_time_ns=150_000_000 * (1 + ("H200" in devices)))
    if trained:
        one = record(0)
        there = one.environment.model_copy(update={"devices": tuple(devices)})
        write_json(job_folder(folder, job) / "train" / "result.json", one.model_copy(update={"environment": there}))
    else:
        manifest = {"schema": "nightjar.capture/1", "environment": {"devices": devices}}
        (job_folder(folder, job) / "capture" / "manifest.json").write_text(json.dumps(manifest))
    return folder


@pytest.mark.parametrize("trained", [True, False])
def test_a_profile_on_another_device_is_a_break_and_no_regression(store: Store, tmp_path: Path, trained: bool) -> None:
    for number in range(1, 25):
        devices = ["H100"] if number < 20 else ["H200"]
        import_night(store, leave_profile_night(tmp_path / str(number), number, devices, trained=trained))
    one = next(s for s in store.series_before(night(24).id) if s.name == "gpt-profile/device_time")
    assert one.environments[18] != one.environments[19]
    assert all(kind in key for kind, key in zip(["H100"] * 19 + ["H200"] * 5, one.environments, strict=True))
    verdict = judge_history(one, HistoryPolicy(measure="device_time"))
    assert verdict is not None
    assert verdict.status == "cannot_tell"
    assert "5 of the 13 nights" in verdict.explanation


def test_the_latest_verdict_on_a_history_says_whether_it_is_regressed(store: Store) -> None:
    whole = Verdict(series="demo/loss", judge="history", status="regressed", n=1, policy={}, runs=(), explanation="!")
    statuses: list[Status] = ["regressed", "ok", "regressed"]
    for number, status in enumerate(statuses, 1):
        add(store, number, record(0))
        body = whole.model_copy(update={"status": status}).model_dump(mode="json")
        store.add_verdicts(night(number).id, [body, {**VERDICT, "series": "demo/loss"}])
    add(store, 4, record(0))
    found = [store.regressions_before(night(number).id) for number in range(1, 5)]
    assert found == [{}, {"demo/loss": whole}, {}, {"demo/loss": whole}]
    assert store.history_verdict("demo/loss") == whole
    store.add_verdicts(night(3).id, [{**VERDICT, "judge": "history", "status": "regressed"}])
    with pytest.raises(StoreError, match="a newer nightjar-ci") as caught:
        store.regressions_before(night(4).id)
    assert "demo/loss cannot be read" in str(caught.value)


def test_a_night_on_another_machine_neither_ends_a_regression_nor_carries_it_on(store: Store) -> None:
    known: dict[str, Any] = {"series": "demo/loss", "judge": "history", "n": 1, "policy": {}, "runs": []}
    told: list[tuple[str, Status]] = [("a", "regressed"), ("b", "ok"), ("b", "ok"), ("a", "ok"), ("a", "regressed")]
    machines = [machine for machine, _ in told] + ["b", "a"]
    before = []
    for number, machine in enumerate(machines, 1):
        one = record(0)
        environment = one.environment.model_copy(update={"driver": machine})
        add(store, number, one.model_copy(update={"environment": environment}))
        before.append(set(store.regressions_before(night(number).id)))
        if number <= len(told):
            store.add_verdicts(night(number).id, [{**known, "status": told[number - 1][1], "explanation": "!"}])
    assert before == [set(), set(), set(), {"demo/loss"}, set(), set(), {"demo/loss"}]
    found = store.history_verdict("demo/loss")
    assert found is not None
    assert found.status == "regressed"
    assert store.history_verdict("demo/none") is None


def test_the_environment_of_a_night_is_that_of_its_completed_run(store: Store) -> None:
    add(store, 1, record(0))
    add(store, 2, None, state="failed")
    assert store.environment_of("demo", night(1).id) == record(0).environment
    assert store.environment_of("demo", night(2).id) is None
    assert store.environment_of("demo", night(3).id) is None


def test_the_latest_facts_are_those_of_an_earlier_completed_night_with_the_same_key(store: Store) -> None:
    key = record(0).environment.facts_key
    for number in (1, 2, 3):
        add(store, number, record(0, facts=[program_facts(flops=float(number))]))
    add(store, 4, record(0, facts=[program_facts(flops=4.0)], jaxlib="0.9"))
    add(store, 5, None, state="failed")

    def flops(before: int) -> float | None:
        facts = store.latest_facts("demo", key, night(before).id)
        return facts[0].flops if facts else None

    assert [flops(before) for before in (1, 2, 3, 5, 9)] == [None, 1.0, 2.0, 3.0, 3.0]
    assert store.latest_facts("demo", "jaxlib-1", night(9).id) is None
    facts = store.latest_facts("demo", key, night(9).id)
    assert facts is not None
    assert facts[0].opcodes["dot"].model_dump() == tally(24)


def test_a_run_of_an_unknown_night_is_refused(store: Store) -> None:
    with pytest.raises(StoreError, match="has no night 'no-such-night'"):
        store.add_run("no-such-night", make_outcome(make_job("true"), state="completed", started_at=""), None)


def test_migrations_lead_to_the_tables_of_this_version(tmp_path: Path) -> None:
    engine = open_engine(f"sqlite:///{tmp_path / 'store.sqlite'}")
    migrate(engine)
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), tables.metadata) == []
    engine.dispose()
    scripts = ScriptDirectory(str(Path(nightjar_ci.store.__file__).parent / "migrations"))
    assert scripts.get_current_head() == tables.VERSION


@pytest.mark.parametrize(("version", "hint"), [("9999", "upgrade nightjar-ci"), ("0002", "it is older than 0.1.0")])
def test_a_store_of_an_unknown_version_is_refused(store: Store, tmp_path: Path, version: str, hint: str) -> None:
    with sqlite3.connect(tmp_path / "store.sqlite") as connection:
        connection.execute("UPDATE alembic_version SET version_num = ?", (version,))
    connection.close()
    with pytest.raises(StoreError, match=f"has version '{version}'") as caught:
        open_store(sqlite_settings(tmp_path))
    assert caught.value.hint is not None
    assert hint in caught.value.hint


def test_nights_of_one_microsecond_get_numbers_of_their_own_at_the_same_cost(store: Store) -> None:
    statements: list[str] = []

    def add_one(number: int) -> int:
        statements.clear()
        store.add_night(night(1).model_copy(update={"id": f"n{number}"}))
        return len(statements)

    event.listen(store._engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
    costs = [add_one(number) for number in range(30)]
    assert len(store.nights()) == 30
    assert set(costs[1:]) == {costs[1]}


MANY = """
import sys
from pathlib import Path
from nightjar_ci.formats.job import Job
from nightjar_ci.formats.night_folder import Night
from nightjar_ci.formats.outcome import make_outcome
from nightjar_ci.formats.run_record import read_run
from nightjar_ci.settings import read_settings
from nightjar_ci.store import open_store

folder, seed = Path(sys.argv[1]), int(sys.argv[2])
record = read_run(folder / "result.json")
store = open_store(read_settings({"NIGHTJAR_STATE_DIR": str(folder)}))
job = Job(id=f"demo-s{seed}", cell="demo", replicate=seed, kind="train", command=("true",), env={},
          environment="current", executor="local", timeout_s=1)
for number in range(10):
    start = f"2026-11-{number + 1:02d}"
    night = Night(id=f"n{number}", matrix="m", started_at=start, finished_at=None, git=None, jobs=())
    store.add_night(night)
    store.add_run(night.id, make_outcome(job, state="completed", started_at=""), record)
"""


def test_processes_make_and_write_one_store_at_once(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(record(0, values=[3.0, 2.0]).model_dump_json(by_alias=True))
    running = [
        subprocess.Popen([sys.executable, "-c", MANY, str(tmp_path), str(seed)], stderr=subprocess.PIPE, text=True)
        for seed in range(3)
    ]
    for one in running:
        _, errors = one.communicate(timeout=60)
        assert one.returncode == 0, errors
    opened = open_store(sqlite_settings(tmp_path))
    assert len(opened.history("demo", "loss")) == 30
    opened.close()


def test_a_full_disk_is_told_and_what_is_stored_stays(store: Store, tmp_path: Path) -> None:
    add(store, 1, record(0))
    with store._engine.connect() as connection:  # SQLite's own way to be full
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
        connection.rollback()
    long_night = record(0, values=[float(step) for step in range(20_000)])
    with pytest.raises(StoreError, match="full") as caught:
        add(store, 2, long_night)
    assert caught.value.exit_code == 3
    assert "Make room" in (caught.value.hint or "")
    again = open_store(sqlite_settings(tmp_path))
    assert len(again.history("demo", "loss")) == 1
    again.close()


def test_postgresql_remembers_the_same(postgres: str) -> None:
    settings = read_settings({"NIGHTJAR_DATABASE_URL": postgres})
    store = open_store(settings)
    check_memory(store)
    store.close()
    again = open_store(settings)
    assert len(again.history("demo", "loss")) == 3
    again.close()
