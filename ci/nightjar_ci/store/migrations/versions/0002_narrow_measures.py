"""Measures as narrow rows in the order of their series, numbered nights, attempts of a run, compressed documents.

The old tables are copied aside, recreated and filled, which is the same on SQLite and PostgreSQL.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

OLD = ("night", "run", "measure", "verdict")


def upgrade() -> None:
    """Copies the four old tables aside, makes the new ones and moves everything over."""
    for name in OLD:
        op.execute(f"CREATE TABLE old_{name} AS SELECT * FROM {name}")
    for name in reversed(OLD):
        op.drop_table(name)
    op.create_index("old_measure_of_run", "old_measure", ["run"])
    _make_tables()
    numbers = _move_nights()
    _move_runs(numbers)
    _move_verdicts(numbers)
    for name in OLD:
        op.drop_table(f"old_{name}")


def _make_tables() -> None:
    number = sa.BigInteger()
    op.create_table(
        "night",
        sa.Column("number", number, primary_key=True, autoincrement=False),
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("matrix", sa.String(), nullable=False),
        sa.Column("started_at", sa.String(), nullable=False),
        sa.Column("finished_at", sa.String()),
        sa.Column("git_sha", sa.String()),
    )
    op.create_index("night_of_id", "night", ["id"], unique=True)
    op.create_table(
        "environment", sa.Column("id", sa.Integer(), primary_key=True), sa.Column("key", sa.String(), nullable=False)
    )
    op.create_index("environment_of_key", "environment", ["key"], unique=True)
    op.create_table(
        "run",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("night", number, sa.ForeignKey("night.number"), nullable=False),
        sa.Column("job", sa.String(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("cell", sa.String(), nullable=False),
        sa.Column("replicate", sa.Integer()),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("facts_key", sa.String()),
        sa.Column("digest", sa.String(), nullable=False),
    )
    op.create_index("run_of_job", "run", ["night", "job", "attempt", "state"], unique=True)
    op.create_index("run_of_cell", "run", ["cell", "facts_key", "night"])
    op.create_table(
        "document",
        sa.Column("run", sa.Integer(), sa.ForeignKey("run.id"), primary_key=True, autoincrement=False),
        sa.Column("outcome", sa.LargeBinary(), nullable=False),
        sa.Column("result", sa.LargeBinary()),
        sa.Column("profile", sa.LargeBinary()),
    )
    op.create_table(
        "series",
        sa.Column("id", sa.Integer(), primary_key=True),
        *(sa.Column(name, sa.String(), nullable=False) for name in ("cell", "name", "kind", "unit", "better")),
    )
    op.create_index("series_of_cell", "series", ["cell", "name", "kind", "unit", "better"], unique=True)
    op.create_table(
        "measure",
        sa.Column("series", sa.Integer(), sa.ForeignKey("series.id"), primary_key=True, autoincrement=False),
        sa.Column("night", number, sa.ForeignKey("night.number"), primary_key=True, autoincrement=False),
        sa.Column("run", sa.Integer(), sa.ForeignKey("run.id"), primary_key=True, autoincrement=False),
        sa.Column("environment", sa.Integer(), sa.ForeignKey("environment.id"), nullable=False),
        sa.Column("value", sa.Float()),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "verdict",
        sa.Column("night", number, sa.ForeignKey("night.number"), primary_key=True, autoincrement=False),
        sa.Column("position", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("series", sa.String(), nullable=False),
        sa.Column("judge", sa.String(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("body", sa.JSON(), nullable=False),
    )
    op.create_index("verdict_of_series", "verdict", ["series", "night"])


def _rows(query: str) -> Iterator[dict[str, Any]]:
    for row in op.get_bind().execute(sa.text(query)):
        yield dict(row._mapping)


def _insert(table: str, **values: Any) -> None:
    op.get_bind().execute(sa.table(table, *map(sa.column, values)).insert().values(**values))


def _move_nights() -> dict[str, int]:
    """Numbers the nights in the order of their start."""
    numbers: dict[str, int] = {}
    last = 0
    for row in list(_rows("SELECT * FROM old_night ORDER BY started_at, id")):
        last = numbers[row["id"]] = max(last + 1, _microseconds(row["started_at"]))
        _insert("night", number=last, **row)
    return numbers


def _move_runs(numbers: dict[str, int]) -> None:
    environments: dict[str, int] = {}
    series: dict[tuple[str, ...], int] = {}
    for run in list(_rows("SELECT id FROM old_run ORDER BY id")):
        (row,) = _rows(f"SELECT * FROM old_run WHERE id = {int(run['id'])}")
        outcome, result = (_document(row.pop(name)) for name in ("outcome", "result"))
        texts = [json.dumps(document, sort_keys=True, separators=(",", ":")) for document in (outcome, result, None)]
        digest = hashlib.sha256("\n".join(texts).encode()).hexdigest()
        number = numbers[row.pop("night")]
        _insert("run", night=number, attempt=1, digest=digest, **row)
        _insert("document", run=row["id"], outcome=_compressed(outcome), result=_compressed(result))
        if row["state"] != "completed" or result is None:
            continue
        key = _environment_key(result["environment"])
        if key not in environments:
            environments[key] = len(environments) + 1
            _insert("environment", id=environments[key], key=key)
        for measure in list(_rows(f"SELECT * FROM old_measure WHERE run = {int(row['id'])}")):
            key_values = (row["cell"], measure["name"], measure["kind"], measure["unit"], measure["better"])
            if key_values not in series:
                series[key_values] = len(series) + 1
                names = ("cell", "name", "kind", "unit", "better")
                _insert("series", id=series[key_values], **dict(zip(names, key_values, strict=True)))
            ids = {"series": series[key_values], "night": number, "run": row["id"]}
            _insert("measure", **ids, environment=environments[key], value=measure["value"])
    if op.get_bind().dialect.name == "postgresql":
        for table in ("run", "environment", "series"):
            op.execute(f"SELECT setval('{table}_id_seq', (SELECT coalesce(max(id), 0) + 1 FROM {table}), false)")


def _move_verdicts(numbers: dict[str, int]) -> None:
    names = ("night", "position", "series", "judge", "status")
    verdict = sa.table("verdict", *map(sa.column, names), sa.column("body", sa.JSON()))
    for row in list(_rows("SELECT * FROM old_verdict ORDER BY night, position")):
        values = {**row, "night": numbers[row["night"]], "body": _document(row["body"])}
        op.get_bind().execute(verdict.insert().values(**values))


def _document(stored: Any) -> Any:
    """A JSON column as SQLite (text) or PostgreSQL (parsed) hands it out."""
    return json.loads(stored) if isinstance(stored, str) else stored


def _compressed(value: Any) -> bytes | None:
    return None if value is None else zlib.compress(json.dumps(value, separators=(",", ":")).encode(), 6)


def _microseconds(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return 0
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1e6)


def _environment_key(found: dict[str, Any]) -> str:
    """`Environment.measured_on` as it was when this migration was written; 0001 knew no driver."""
    kinds = ",".join(sorted(set(found["devices"]))) or "none"
    cpu = found["cpu"]
    return f"{len(found['devices'])} x {kinds}; {cpu['model']}, {cpu['cores']} cores"
