"""Readers for trainer logs: `trainer_state.json` of Hugging Face, lines of MLPerf, metrics of MLflow and W&B.

In: a file; of MLflow `mlflow.db` (its last logging run), or `mlruns/EXPERIMENT/RUN/metrics/NAME`; of W&B an offline
run, `wandb/offline-run-*/run-*.wandb`. Out: records with the logged names and a `step`.

Source: transformers/trainer_callback.py (TrainerState.log_history); mlcommons/logging, mllog (lines `:::MLLOG {...}`);
MLflow 3.17: mlflow/store/tracking/dbmodels/models.py (SqlMetric), mlflow/store/tracking/file_store.py;
wandb/sdk/internal/datastore.py (LevelDB's log format with its own header), wandb/proto/wandb_internal.proto (messages
Record, HistoryRecord and HistoryItem).
"""

from __future__ import annotations

import json
import math
import sqlite3
import struct
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from nightjar_ci.adapters.protobuf import bytes_of, integer_of, parse_message
from nightjar_ci.adapters.records import CutFileError, Record, flatten, parse_object, read_file, read_lines, read_object
from nightjar_ci.errors import InputError

_MARK = ":::MLLOG"
_STEPS = ("step_num", "samples_count", "epoch_num", "epoch_count", "current_epoch_num")


_MAGIC = b"SQLite format 3\x00"
_METRICS = "metrics"  # table of the store, folder of the files
_QUERY = """
select key, value, step, is_nan, run_uuid from metrics
where run_uuid = (select run_uuid from metrics order by timestamp desc, rowid desc limit 1)
order by step, timestamp
"""
_MOST_STEPS = 200_000_000  # of SQLite's machine; a crafted schema could loop
_MOST_VALUE_BYTES = 65_536  # of a value; a crafted column could be computed, and as large as memory


_WANDB_MAGIC = b":W&B"
_HEADER = 7  # bytes of the file's header, and of each part's
_BLOCK = 32768
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_HISTORY, _ITEM, _STEP = 2, 1, 2  # fields of Record and HistoryRecord
_KEY, _NESTED, _JSON = 1, 2, 16  # fields of HistoryItem
_KILLED = "its writer may have been killed before it closed the file"


def read_trainer_state(path: Path, *, left_in: Path | None = None) -> Iterator[Record]:
    """The entries of `log_history`."""
    history = read_object(path, left_in).get("log_history")
    if not isinstance(history, list):
        raise InputError(f"{path}: it has no list 'log_history'.", "pass checkpoint-*/trainer_state.json")
    for number, entry in enumerate(history):
        source = f"{path}: log_history[{number}]"
        if not isinstance(entry, dict):
            raise InputError(f"{source}: expected an object, found {type(entry).__name__}.")
        yield Record(source=source, fields=flatten(entry))


def read_mlperf(path: Path, *, left_in: Path | None = None) -> Iterator[Record]:
    """The lines of MLPerf's logger; a line's value is the field that its key names, its metadata are fields as well.

    The step is the first of `step_num`, `samples_count` and `epoch_num` in the metadata.
    """
    for number, line in read_lines(path, left_in):
        _, mark, text = line.partition(_MARK)
        if not mark:
            continue
        source = f"{path}:{number}"
        entry = parse_object(source, text)
        fields = {
            name.partition("metadata.")[2]: value for name, value in entry.items() if name.startswith("metadata.")
        }
        fields |= {name: entry[name] for name in ("event_type", "time_ms") if name in entry}
        step = next((fields[name] for name in _STEPS if name in fields), None)
        if step is not None:
            fields.setdefault("step", step)
        if isinstance(entry.get("key"), str):
            fields[entry["key"]] = entry.get("value")
        yield Record(source=source, fields=fields)


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


def read_wandb(path: Path, *, left_in: Path | None = None) -> Iterator[Record]:
    """The logged steps, in file order."""
    for number, data in enumerate(_read_records(path, read_file(path, left_in)), start=1):
        source = f"{path}: record {number}"
        try:
            for history in bytes_of(parse_message(data), _HISTORY):
                yield Record(source=source, fields=_read_history(history))
        except (ValueError, IndexError) as error:
            raise InputError(f"{source}: not a valid W&B record: {error}.") from None


def _read_history(data: bytes) -> dict[str, Any]:
    fields = parse_message(data)
    values: dict[str, Any] = {}
    for item in map(parse_message, bytes_of(fields, _ITEM)):
        name = ".".join(
            part.decode("utf-8", errors="replace") for part in (*bytes_of(item, _KEY), *bytes_of(item, _NESTED))
        )
        values[name] = json.loads(next(bytes_of(item, _JSON), b"null"))
    step = integer_of(parse_message(next(bytes_of(fields, _STEP), b"")), 1)
    values.setdefault("step", values.get("_step", step))
    return values


def _read_records(path: Path, data: bytes) -> Iterator[bytes]:
    """The records of the log; one that is longer than a block comes in parts."""
    if not data.startswith(_WANDB_MAGIC):
        raise InputError(f"{path}: not a file of W&B.", "pass wandb/offline-run-*/run-*.wandb")
    offset, whole = _HEADER, b""
    while offset < len(data):
        if (left := _BLOCK - offset % _BLOCK) < _HEADER:
            offset += left  # padding
            continue
        if len(data) - offset < _HEADER:
            raise CutFileError(f"{path}: byte {offset}: the file is incomplete.", _KILLED)
        checksum, length, kind = struct.unpack_from("<IHB", data, offset)
        part = data[offset + _HEADER : offset + _HEADER + length]
        if len(part) < length:
            raise CutFileError(f"{path}: byte {offset}: the file is incomplete.", _KILLED)
        if zlib.crc32(part, zlib.crc32(bytes([kind]))) != checksum:
            raise InputError(f"{path}: byte {offset}: damaged: its checksum is wrong.")
        offset += _HEADER + length
        whole += part
        if kind in (_WHOLE, _LAST):
            yield whole
            whole = b""
    if whole:
        raise CutFileError(f"{path}: the file is incomplete.", _KILLED)
