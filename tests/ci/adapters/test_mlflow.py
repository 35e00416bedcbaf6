"""Metrics of MLflow: of its SQLite store the run that logged last, and the files below `mlruns`."""

import math
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from nightjar_ci.adapters.trainers import read_mlflow
from nightjar_ci.errors import InputError
from tests.ci.adapters.test_formats import convert, wrote

LOSS = [{"field": "train/loss"}]
TABLE = """create table metrics (key varchar(250) not null, value float not null, timestamp bigint not null,
run_uuid varchar(32) not null, step bigint default '0' not null, is_nan boolean default '0' not null)"""


def store(path: Path, rows: list[tuple[str, float, int, str, int, int]], table: str = TABLE) -> Path:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(table)
        connection.executemany("insert into metrics values (?, ?, ?, ?, ?, ?)", rows)
    return path


def test_the_run_that_logged_last_is_read(tmp_path: Path) -> None:
    rows = [
        ("train/loss", 5.0 - step - run, 1000 * run + step, f"r{run}", step, 0) for run in (2, 1) for step in (1, 0)
    ]
    (curve,) = convert(store(tmp_path / "mlflow.db", rows), format="mlflow", curve=LOSS).curves
    assert (curve.steps, curve.values) == ((0, 1), (3.0, 2.0))


def test_a_value_that_is_not_a_number_is_kept_as_that(tmp_path: Path) -> None:
    path = store(tmp_path / "mlflow.db", [("train/loss", 0.0, 1, "r", 0, 1)])
    (record,) = read_mlflow(path)
    assert math.isnan(record.fields["train/loss"])
    assert record.fields["run_id"] == "r"


def test_files_below_mlruns_are_named_by_their_path(tmp_path: Path) -> None:
    path = tmp_path / "mlruns" / "0" / "abc" / "metrics" / "train" / "loss"
    path.parent.mkdir(parents=True)
    path.write_text("1795654060527 4.5 0\n1795654060528 3.5 1\n")
    (curve,) = convert(path, format="mlflow", curve=LOSS).curves
    assert (curve.steps, curve.values) == ((0, 1), (4.5, 3.5))
    assert [record.fields["run_id"] for record in read_mlflow(path)] == ["abc", "abc"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("mlflow.db", b"hello", "neither MLflow's SQLite store nor"),
        ("mlflow.db", b"SQLite format 3\x00" + bytes(200), "not a store of MLflow"),
        ("metrics/loss", b"1 2 3 4\n", r"loss:1: expected `TIMESTAMP VALUE STEP`"),
        ("metrics/loss", b"\n", r"loss:1: expected"),
    ],
)
def test_other_files_are_named_for_what_they_are(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / "metrics").mkdir()
    with pytest.raises(InputError, match=message):
        list(read_mlflow(wrote(tmp_path / name, content)))


def test_another_database_is_not_a_store(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("create table metrics (a)")
    with pytest.raises(InputError, match="not a store of MLflow"):
        list(read_mlflow(path))


def test_a_view_in_place_of_the_table_is_not_asked(tmp_path: Path) -> None:
    path = tmp_path / "evil.db"
    endless = (
        "with recursive n(i) as (select 0 union all select i + 1 from n) select 'a' key, i value, i step, 0 is_nan"
    )
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"create view metrics as {endless}, 'r' run_uuid, i timestamp from n")
    with pytest.raises(InputError, match="no table `metrics`"):
        list(read_mlflow(path))


def test_a_computed_column_that_is_as_large_as_memory_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "evil.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            "create table metrics (value, timestamp, run_uuid, step, is_nan, key as (hex(zeroblob(100000000))))"
        )
        connection.execute("insert into metrics values (1, 1, 'r', 1, 0)")
    with pytest.raises(InputError, match="not a store of MLflow"):
        list(read_mlflow(path))


def test_a_store_that_is_too_much_work_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nightjar_ci.adapters.trainers._MOST_STEPS", 1_000)
    path = store(tmp_path / "mlflow.db", [("train/loss", 1.0, step, "r", step, 0) for step in range(1_000)])
    with pytest.raises(InputError, match="interrupted"):
        list(read_mlflow(path))
