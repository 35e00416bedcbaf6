"""Which tables does the store have? The newest state; `migrations/` says how an older one gets there."""

from __future__ import annotations

from sqlalchemy import JSON, Column, Float, ForeignKey, Index, Integer, MetaData, String, Table

VERSION = "0001"  # the migration that leads here

metadata = MetaData()

night = Table(
    "night",
    metadata,
    Column("id", String, primary_key=True),
    Column("matrix", String, nullable=False),
    Column("started_at", String, nullable=False),
    Column("finished_at", String),
    Column("git_sha", String),
)

run = Table(
    "run",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("night", String, ForeignKey("night.id", ondelete="CASCADE"), nullable=False),
    Column("job", String, nullable=False),
    Column("cell", String, nullable=False),
    Column("replicate", Integer),
    Column("kind", String, nullable=False),
    Column("state", String, nullable=False),
    Column("facts_key", String),
    Column("outcome", JSON, nullable=False),
    Column("result", JSON(none_as_null=True)),
    Index("run_of_job", "night", "job", unique=True),
    Index("run_of_cell", "cell", "facts_key"),
)

measure = Table(
    "measure",
    metadata,
    Column("run", Integer, ForeignKey("run.id", ondelete="CASCADE"), primary_key=True),
    Column("kind", String, primary_key=True),
    Column("name", String, primary_key=True),
    Column("unit", String, nullable=False),
    Column("better", String, nullable=False),
    Column("value", Float),  # null where it is not finite: SQLite knows no NaN
    Index("measure_of_name", "name"),
)

verdict = Table(
    "verdict",
    metadata,
    Column("night", String, ForeignKey("night.id", ondelete="CASCADE"), primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("series", String, nullable=False),
    Column("judge", String, nullable=False),
    Column("status", String, nullable=False),
    Column("body", JSON, nullable=False),
    Index("verdict_of_series", "series"),
)
