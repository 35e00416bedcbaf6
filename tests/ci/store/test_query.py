"""The store is asked in SQL, and nothing that is asked can change it."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest

from nightjar_ci.cli import main
from nightjar_ci.errors import InputError
from nightjar_ci.settings import Settings, read_settings
from nightjar_ci.store import Store, open_store
from nightjar_ci.store.folder import import_night
from nightjar_ci.store.query import query
from tests.ci.nights import CELL, failed, make_night, outcome, record

NIGHT = "2026-11-21T0300-1a2b"
WRITES = [
    "DELETE FROM night",
    "UPDATE run SET state = 'failed'",
    "DROP TABLE measure",
    "CREATE TABLE mine (x INTEGER)",
    "INSERT INTO environment (key) VALUES ('x')",
    "SELECT 1; DELETE FROM verdict",
    "COMMIT; DELETE FROM verdict",
    "WITH gone AS (DELETE FROM verdict RETURNING 1) SELECT * FROM gone",
]


def fill(settings: Settings, tmp_path: Path) -> Store:
    store = open_store(settings)
    runs = [(outcome(f"{CELL}-s{seed}"), record(seed, values=[3.0, 2.0 + seed])) for seed in range(2)]
    import_night(store, make_night(tmp_path / "night", [*runs, (failed("vit-s0"), None)], NIGHT))
    store.add_verdicts(NIGHT, [{"series": f"{CELL}/loss", "judge": "convergence", "status": "ok", "n": 2}])
    return store


def check_questions(settings: Settings, tmp_path: Path) -> None:
    """What any database must answer, and refuse."""
    store = fill(settings, tmp_path)
    losses = query(settings, "SELECT replicate, value, unit FROM history WHERE measure = 'loss' ORDER BY replicate;")
    assert losses.rows() == [(0, 2.0, "nats/token"), (1, 3.0, "nats/token")]
    assert query(settings, "outcomes")["state"].to_list().count("failed") == 1
    assert query(settings, "SELECT status FROM verdicts").rows() == [("ok",)]
    assert query(settings, "SELECT value FROM history WHERE measure = 'nothing'").is_empty()
    before = [str(point) for point in store.history(CELL, "loss")]
    for statement in WRITES:
        with pytest.raises(InputError, match="store refuses"):
            query(settings, statement)
    assert [str(point) for point in store.history(CELL, "loss")] == before
    assert query(settings, "SELECT status FROM verdicts").rows() == [("ok",)]
    store.close()


def test_sqlite_answers_and_cannot_be_written(tmp_path: Path) -> None:
    check_questions(read_settings({"NIGHTJAR_STATE_DIR": str(tmp_path)}), tmp_path)


def test_postgresql_answers_and_cannot_be_written(postgres: str, tmp_path: Path) -> None:
    check_questions(read_settings({"NIGHTJAR_DATABASE_URL": postgres}), tmp_path)


REACHES = [
    "COPY (SELECT 1) TO PROGRAM 'touch {file}'",
    "COPY (SELECT 1) TO '{file}'",
    "SELECT 1; COPY (SELECT 1) TO PROGRAM 'touch {file}'",
    "SELECT lo_export(lo_import('/etc/hostname'), '{file}')",
    "SELECT pg_read_file('/etc/hostname')",
    "SELECT set_config('role', 'none', true), pg_read_file('/etc/hostname')",
    "SELECT set_config('transaction_read_only', 'off', true), lo_from_bytea(0, 'x')",
    "SELECT set_config('role', 'none', true), query_to_xml('SELECT pg_read_file(''/etc/hostname'')', true, true, '')",
    "SELECT U&\"set\\005fconfig\"('statement_timeout', '0', true)",
    "SELECT ts_stat('SELECT set_' || 'config(''role'', ''none'', true)')",
    "SELECT * FROM verdict FOR UPDATE",
    "DO 'BEGIN DELETE FROM verdict; END'",
    "VACUUM verdict",
    "SET ROLE tester",
]


def test_postgresql_reaches_no_program_and_no_file(postgres: str, tmp_path: Path) -> None:
    settings = read_settings({"NIGHTJAR_DATABASE_URL": postgres})
    open_store(settings).close()
    tmp_path.chmod(0o777)
    for statement in REACHES:
        with pytest.raises(InputError, match="store refuses"):
            query(settings, statement.format(file=tmp_path / "written"))
    assert not (tmp_path / "written").exists()


def test_an_answer_of_postgresql_may_be_empty(postgres: str) -> None:
    settings = read_settings({"NIGHTJAR_DATABASE_URL": postgres})
    assert query(settings, "SELECT n FROM generate_series(1, 10) AS n")["n"].to_list() == list(range(1, 11))
    assert query(settings, "SELECT 1 AS n WHERE false").columns == ["n"]


def test_a_store_on_a_disk_that_nobody_can_write_answers(tmp_path: Path) -> None:
    fill(read_settings({"NIGHTJAR_STATE_DIR": str(tmp_path / "state")}), tmp_path).close()
    ask = [sys.executable, "-m", "nightjar_ci", "query", "SELECT id FROM night", "--json"]
    mounted = f'mount --bind -o ro {tmp_path / "state"} {tmp_path / "state"} && exec "$@"'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", mounted, "sh", *ask],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "NIGHTJAR_STATE_DIR": str(tmp_path / "state")},
    )
    if done.returncode and ("unshare" in done.stderr or "mount" in done.stderr):
        pytest.skip(f"no read-only mounts here: {done.stderr.strip()}")
    assert (done.returncode, json.loads(done.stdout or "null")) == (0, [{"id": NIGHT}]), done.stderr


def test_no_other_file_is_opened_by_a_question(tmp_path: Path) -> None:
    settings = read_settings({"NIGHTJAR_STATE_DIR": str(tmp_path)})
    fill(settings, tmp_path).close()
    with pytest.raises(InputError, match="not authorized"):
        query(settings, f"ATTACH DATABASE '{tmp_path / 'other'}' AS other")
    assert not (tmp_path / "other").exists()


def has_opened(process: subprocess.Popen[str], name: str) -> bool:
    try:
        return any(file.readlink().name == name for file in Path(f"/proc/{process.pid}/fd").iterdir())
    except FileNotFoundError:  # closed in the meantime
        return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_query_without_an_end_ends_with_a_signal(tmp_path: Path, number: int) -> None:
    sql = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    environ = {**os.environ, "NIGHTJAR_STATE_DIR": str(tmp_path)}
    open_store(read_settings(environ)).close()
    command = [sys.executable, "-m", "nightjar_ci", "query", sql]
    with subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True) as process:
        while not has_opened(process, "store.sqlite"):
            time.sleep(0.05)
        process.send_signal(number)
        try:
            _, stderr = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode in (130, 143)  # within SQLite, or before it began
    assert "Traceback" not in stderr


@pytest.mark.parametrize(
    ("sql", "message"), [("nights", "no table 'nights'"), ("", "no table ''"), ("SELECT nope FROM night", "nope")]
)
def test_what_the_database_does_not_understand_is_told(tmp_path: Path, sql: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        query(read_settings({"NIGHTJAR_STATE_DIR": str(tmp_path)}), sql)


def test_the_command_prints_json_and_writes_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NIGHTJAR_STATE_DIR", str(tmp_path))
    fill(read_settings(), tmp_path).close()
    digest = hashlib.sha256((tmp_path / "store.sqlite").read_bytes()).hexdigest()

    def call(*arguments: str) -> tuple[object, str]:
        with pytest.raises(SystemExit) as caught:
            main(["query", *arguments])
        return caught.value.code, capsys.readouterr().out

    code, out = call("SELECT id FROM night", "--json")
    assert (code, json.loads(out)) == (0, [{"id": NIGHT}])
    code, out = call("history", "--out", str(tmp_path / "h.parquet"))
    assert (code, out) == (0, f"{tmp_path / 'h.parquet'}\n")
    assert pl.read_parquet(tmp_path / "h.parquet")["cell"].unique().to_list() == [CELL]
    for suffix, read in (("csv", pl.read_csv), ("json", pl.read_json)):
        assert call("night", "--out", str(tmp_path / f"n.{suffix}"))[0] == 0
        assert read(tmp_path / f"n.{suffix}")["id"].to_list() == [NIGHT]
    assert "2026-11-21T0300-1a2b" in call("night")[1]
    assert call("night", "--out", "x.xlsx")[0] == 2
    assert hashlib.sha256((tmp_path / "store.sqlite").read_bytes()).hexdigest() == digest


def test_without_polars_the_error_names_the_extra(tmp_path: Path) -> None:
    (tmp_path / "polars.py").write_text("raise ModuleNotFoundError('polars', name='polars')\n")
    variables = {**os.environ, "NIGHTJAR_STATE_DIR": str(tmp_path / "state")}
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-m", "nightjar_ci", "query", "night"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=tmp_path, env={**variables, "PYTHONPATH": path}
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1] == "Hint: pip install 'nightjar-ci[query]'"
