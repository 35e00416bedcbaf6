"""The tables of the store in their newest version; `migrations/` leads to them.

Wide data (results, outcomes) is separate from data that is read often. `measure` has one narrow row per number, ordered
by series and night, so that a history is one contiguous read. A night's `number` is its start time in microseconds
since 1970, made unique, so that numbers sort as nights do.
"""

from __future__ import annotations

import json
import zlib
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    Dialect,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    TypeDecorator,
)

VERSION = "0004"  # the latest migration

metadata = MetaData()


class CompressedJson(TypeDecorator[Any]):
    """A compressed JSON document: a result is mostly digits, and shrinks to a fifth of its size."""

    impl = LargeBinary
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> bytes | None:
        if value is None:
            return None
        return zlib.compress(json.dumps(value, separators=(",", ":")).encode(), 6)

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        if value is None:
            return None
        return json.loads(zlib.decompress(value))


night = Table(
    "night",
    metadata,
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("id", String, nullable=False),
    Column("matrix", String, nullable=False),
    Column("started_at", String, nullable=False),
    Column("finished_at", String),  # null while the night is unfinished
    Column("git_sha", String),
    Column("not_run", JSON),  # planned jobs without an outcome; null in nights that were stored before this was kept
    Column("left_out", JSON),  # cells of the matrix that the night left out
    Index("night_of_id", "id", unique=True),
)

environment = Table(  # the machine of a measurement: each has its own history
    "environment",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("key", String, nullable=False),
    Index("environment_of_key", "key", unique=True),
)

run = Table(  # append-only: a job that runs again is another attempt, and the latest one counts
    "run",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("night", BigInteger, ForeignKey("night.number"), nullable=False),
    Column("job", String, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("cell", String, nullable=False),
    Column("replicate", Integer),
    Column("kind", String, nullable=False),
    Column("state", String, nullable=False),
    Column("facts_key", String),
    Column("digest", String, nullable=False),  # SHA-256 of the documents: adding them again changes nothing
    Index("run_of_job", "night", "job", "attempt", "state", unique=True),
    Index("run_of_cell", "cell", "facts_key", "night"),
)

document = Table(
    "document",
    metadata,
    Column("run", Integer, ForeignKey("run.id"), primary_key=True, autoincrement=False),
    Column("outcome", CompressedJson, nullable=False),
    Column("result", CompressedJson),
    Column("profile", CompressedJson),
)

series = Table(
    "series",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("cell", String, nullable=False),
    Column("name", String, nullable=False),
    Column("kind", String, nullable=False),
    Column("unit", String, nullable=False),
    Column("better", String, nullable=False),
    Index("series_of_cell", "cell", "name", "kind", "unit", "better", unique=True),
)

measure = Table(  # derived from the latest completed attempt of each job
    "measure",
    metadata,
    Column("series", Integer, ForeignKey("series.id"), primary_key=True, autoincrement=False),
    Column("night", BigInteger, ForeignKey("night.number"), primary_key=True, autoincrement=False),
    Column("run", Integer, ForeignKey("run.id"), primary_key=True, autoincrement=False),
    Column("environment", Integer, ForeignKey("environment.id"), nullable=False),
    Column("value", Float),  # null if it is not finite: SQLite has no NaN
    sqlite_with_rowid=False,
)

verdict = Table(
    "verdict",
    metadata,
    Column("night", BigInteger, ForeignKey("night.number"), primary_key=True, autoincrement=False),
    Column("position", Integer, primary_key=True, autoincrement=False),
    Column("series", String, nullable=False),
    Column("judge", String, nullable=False),
    Column("status", String, nullable=False),
    Column("body", JSON, nullable=False),
    Index("verdict_of_series", "series", "night"),
)
