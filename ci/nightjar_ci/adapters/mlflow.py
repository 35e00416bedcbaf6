"""Reader for the metrics of an MLflow run: its SQLite store, or the files below `mlruns`.

In: `mlflow.db`, of which the run that logged last is read, or a file `mlruns/EXPERIMENT/RUN/metrics/NAME`. Out: a
record for each logged value, with the metric's name, `step` and `run_id`.

Source: MLflow 3.17: mlflow/store/tracking/dbmodels/models.py (SqlMetric), mlflow/store/tracking/file_store.py.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from nightjar_ci.adapters.records import Record, read_file, read_lines
from nightjar_ci.errors import InputError

_MAGIC = b"SQLite format 3\x00"
_METRICS = "metrics"  # table of the store, folder of the files
_QUERY = """
select key, value, step, is_nan, run_uuid from metrics
where run_uuid = (select run_uuid from metrics order by timestamp desc, rowid desc limit 1)
order by step, timestamp
"""
_MOST_STEPS = 200_000_000  # of SQLite's machine; a crafted schema could loop
_MOST_VALUE_BYTES = 65_536  # of a value; a crafted column could be computed, and as large as memory


def read_mlflow(path: Path, *, left_in: Path | None = None) -> Iterator[Record]:
    """The logged values."""
    if _METRICS in path.parts[:-1]:
        yield from _read_metric(path, left_in)
        return
    data = read_file(path, left_in)
    if not data.startswith(_MAGIC):
        raise InputError(
            f"{path}: neither MLflow's SQLite store nor a file of a run's metrics.",
            "name mlflow.db, or mlruns/*/*/metrics/**",
        )
    yield from _read_store(path, data)


def _read_metric(path: Path, left_in: Path | None) -> Iterator[Record]:
    parts = path.parts
    folder = len(parts) - 1 - parts[::-1].index(_METRICS)
    name, run = "/".join(parts[folder + 1 :]), parts[folder - 1]
    for number, line in read_lines(path, left_in):
        source = f"{path}:{number}"
        cells = line.split(" ")
        if len(cells) not in (2, 3):
            raise InputError(f"{source}: expected `TIMESTAMP VALUE STEP`, found {line[:80]!r}.")
        step = "0"  # of a version that logged none
        if len(cells) == 3:
            step = cells[2]
        yield Record(source=source, fields={name: cells[1], "step": step, "run_id": run})


def _read_store(path: Path, data: bytes) -> Iterator[Record]:
    with closing(sqlite3.connect(":memory:")) as store:
        store.set_progress_handler(lambda: 1, _MOST_STEPS)
        try:
            store.deserialize(data)
            store.execute("pragma trusted_schema = off")
            store.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MOST_VALUE_BYTES)
            if store.execute("select type from sqlite_master where name = 'metrics'").fetchone() != ("table",):
                raise InputError(f"{path}: not a store of MLflow: it has no table `metrics`.")
            rows = store.execute(_QUERY).fetchall()
        except sqlite3.Error as error:
            raise InputError(f"{path}: not a store of MLflow: {error}.") from None
    for number, (name, value, step, is_nan, run) in enumerate(rows, start=1):
        if is_nan:
            value = math.nan
        yield Record(source=f"{path}: metric {number}", fields={str(name): value, "step": step, "run_id": run})
