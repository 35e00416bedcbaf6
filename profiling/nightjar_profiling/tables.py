"""In which form is a capture analysed? One Polars frame per table of docs/reference/capture-folder.md.

In: rows of a reader, or the Parquet files of a capture folder. Out: frames with the columns and types of SCHEMAS.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import polars as pl

from nightjar_profiling.errors import InputError

Row = Mapping[str, Any]

SCHEMAS: dict[str, dict[str, type[pl.DataType]]] = {
    "programs": {"program_id": pl.Int64, "name": pl.String, "fingerprint": pl.String},
    "instructions": {
        "program_id": pl.Int64,
        "name": pl.String,
        "opcode": pl.String,  # a fusion is `fusion:<kind>`
        "computation": pl.String,
        "op_name": pl.String,
        "frame_id": pl.Int64,  # null: no stack of its own
        "bytes": pl.Int64,  # of the output
        "flops": pl.Float64,  # null: the backend does not tell
    },
    "frames": {
        "program_id": pl.Int64,
        "frame_id": pl.Int64,
        "parent_id": pl.Int64,  # null: outermost
        "file": pl.String,
        "line": pl.Int64,
        "function": pl.String,
    },
    "executions": {
        "rank": pl.Int64,
        "device": pl.Int64,
        "program_id": pl.Int64,
        "execution": pl.Int64,
        "start_ns": pl.Int64,
        "duration_ns": pl.Int64,
    },
    "ops": {
        "rank": pl.Int64,
        "device": pl.Int64,
        "program_id": pl.Int64,  # null: an op of no program, such as a copy to the device
        "execution": pl.Int64,  # null: the trace does not tell
        "instruction": pl.String,  # null: as program_id
        "stream": pl.String,
        "kernel": pl.String,
        "start_ns": pl.Int64,
        "duration_ns": pl.Int64,
        "hidden_ns": pl.Int64,  # null: not computed
    },
    "attribution": {
        "program_id": pl.Int64,
        "instruction": pl.String,
        "frame_id": pl.Int64,  # null where how is `none`
        "weight": pl.Float64,
        "how": pl.String,
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """All tables of a capture."""

    programs: pl.DataFrame
    instructions: pl.DataFrame
    frames: pl.DataFrame
    executions: pl.DataFrame
    ops: pl.DataFrame
    attribution: pl.DataFrame

    @property
    def device_time_ns(self) -> int:
        """Sum of the durations of all ops."""
        return int(self.ops["duration_ns"].sum())


def make_table(name: str, rows: Iterable[Row]) -> pl.DataFrame:
    """A frame with the columns of that table; an absent key is null."""
    return pl.DataFrame(list(rows), schema=SCHEMAS[name])


def write_tables(folder: Path, tables: Tables) -> None:
    """Writes `<folder>/<table>.parquet`."""
    folder.mkdir(parents=True, exist_ok=True)
    for field in fields(tables):
        getattr(tables, field.name).write_parquet(folder / f"{field.name}.parquet")


def read_tables(folder: Path) -> Tables:
    """Reads what `write_tables` wrote.

    Raises:
        InputError: a table is missing, truncated, or has other columns.
    """
    return Tables(**{name: _read_table(folder / f"{name}.parquet") for name in SCHEMAS})


def _read_table(path: Path) -> pl.DataFrame:
    try:
        table = pl.read_parquet(path)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise InputError(f"{path}: cannot be read: {error}.", "`nightjar-profiling report` makes it again") from None
    expected = SCHEMAS[path.stem]
    if dict(table.schema) != expected:
        raise InputError(f"{path}: columns are {dict(table.schema)}, expected {expected}.")
    return table
