"""What the store remembers: across processes, versions, full disks, on SQLite and on PostgreSQL."""

from __future__ import annotations

import math
import os
import pwd
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

import nightjar_ci.store
from nightjar_ci.errors import StoreError
from nightjar_ci.night import Night
from nightjar_ci.outcome import make_outcome
from nightjar_ci.record import RunRecord
from nightjar_ci.settings import Settings, read_settings
from nightjar_ci.store import Store, open_store, tables
from nightjar_ci.store.engine import migrate, open_engine
from tests.ci.jobs import make_job
from tests.ci.nights import program_facts, record, tally

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
    outcome = make_outcome(job, state=state, started_at="2026-11-21T03:00:00+00:00")  # type: ignore[arg-type]
    store.add_run(night(number).id, outcome, one)


def check_memory(store: Store) -> None:
    """What any database must do."""
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
    with pytest.raises(StoreError, match="FOREIGN KEY"):
        store.add_run("no-such-night", make_outcome(make_job("true"), state="completed", started_at=""), None)


def test_migrations_lead_to_the_tables_of_this_version(tmp_path: Path) -> None:
    engine = open_engine(f"sqlite:///{tmp_path / 'store.sqlite'}")
    migrate(engine)
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), tables.metadata) == []
    engine.dispose()
    scripts = ScriptDirectory(str(Path(nightjar_ci.store.__file__).parent / "migrations"))
    assert scripts.get_current_head() == tables.VERSION


def test_a_store_of_a_newer_version_is_refused(store: Store, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "store.sqlite") as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    with pytest.raises(StoreError, match="its version is '9999'") as caught:
        open_store(sqlite_settings(tmp_path))
    assert caught.value.hint == "upgrade nightjar-ci"


MANY = """
import sys
from pathlib import Path
from nightjar_ci.job import Job
from nightjar_ci.night import Night
from nightjar_ci.outcome import make_outcome
from nightjar_ci.record import read_run
from nightjar_ci.settings import read_settings
from nightjar_ci.store import open_store

folder, seed = Path(sys.argv[1]), int(sys.argv[2])
record = read_run(folder / "result.json")
store = open_store(read_settings({"NIGHTJAR_STATE_DIR": str(folder)}))
job = Job(id=f"demo-s{seed}", cell="demo", replicate=seed, kind="train", command=("true",), env={},
          environment="current", executor="local", timeout_s=1)
for number in range(10):
    night = Night(id=f"n{number}", matrix="m", started_at=str(number), finished_at=None, git=None, jobs=())
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


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nonsense", "NIGHTJAR_DATABASE_URL: this is no database URL"),
        ("postgresql://u:p@h:secret/x@host/d", "NIGHTJAR_DATABASE_URL: this is no database URL"),
        ("oracle9://x/y", "NIGHTJAR_DATABASE_URL: unknown database"),
        ("sqlite:////proc/none/store.sqlite", "its folder cannot be made"),
        (
            "postgresql://nobody:secret@127.0.0.1:1/x?connect_timeout=2",
            r"postgresql\+psycopg://nobody:\*\*\*@127.0.0.1",
        ),
    ],
)
def test_a_store_that_cannot_be_reached_is_told_without_its_password(url: str, message: str) -> None:
    if url.startswith("postgresql"):
        pytest.importorskip("psycopg")
    with pytest.raises(StoreError, match=message) as caught:
        open_store(read_settings({"NIGHTJAR_DATABASE_URL": url}))
    assert "secret" not in str(caught.value)


def test_a_file_that_is_no_database_is_told(tmp_path: Path) -> None:
    (tmp_path / "store.sqlite").write_text("garbage " * 1000)
    with pytest.raises(StoreError, match="file is not a database"):
        open_store(sqlite_settings(tmp_path))


def postgres_programs() -> Path:
    """The folder of initdb and pg_ctl; Debian keeps them off PATH."""
    pytest.importorskip("psycopg")
    places = [Path(found).resolve().parent for found in [shutil.which("initdb")] if found]
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    found = next((place for place in places if (place / "initdb").exists() and (place / "pg_ctl").exists()), None)
    if found is None:
        pytest.skip("no initdb and pg_ctl: apt-get install postgresql")
    return found


@pytest.fixture
def postgres() -> Iterator[str]:
    """A PostgreSQL server of its own, reached through a socket in a folder of its own."""
    programs = postgres_programs()
    user = None
    if os.getuid() == 0:  # the server refuses to run as root
        names = {entry.pw_name for entry in pwd.getpwall()}
        user = next(name for name in ("postgres", "nobody") if name in names)
    cluster = Path(tempfile.mkdtemp(prefix="pg-"))  # not tmp_path: a socket's path has at most 107 bytes
    if user is not None:
        shutil.chown(cluster, user)

    def run(*command: str) -> None:
        subprocess.run(command, user=user, cwd="/", check=True, stdout=subprocess.DEVNULL, timeout=60)

    try:
        run(str(programs / "initdb"), "--pgdata", str(cluster / "data"), "--auth", "trust", "--username", "tester")
        options = f"-c listen_addresses='' -c unix_socket_directories={cluster} -c fsync=off"
        control = (str(programs / "pg_ctl"), "--pgdata", str(cluster / "data"), "--wait", "--silent")
        run(*control, "--log", str(cluster / "log"), "--options", options, "start")
        try:
            yield f"postgresql://tester@/postgres?host={cluster}"
        finally:
            run(*control, "--mode", "immediate", "stop")
    finally:
        shutil.rmtree(cluster)


@pytest.mark.postgres
def test_postgresql_remembers_the_same(postgres: str) -> None:
    settings = read_settings({"NIGHTJAR_DATABASE_URL": postgres})
    store = open_store(settings)
    check_memory(store)
    with pytest.raises(StoreError, match="foreign key"):
        store.add_run("no-such-night", make_outcome(make_job("true"), state="completed", started_at=""), None)
    store.close()
    again = open_store(settings)
    assert len(again.history("demo", "loss")) == 3
    again.close()
