"""Numeric keys of nights, series and environments in the store.

In: a connection, and a night, series or environment by name. Out: its number, which it gets when it is first stored and
keeps forever. Two processes that add the same name get the same number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from sqlalchemy import Connection, Table, func, select
from sqlalchemy.dialects import postgresql, sqlite

from nightjar_ci.errors import InputError, StoreError
from nightjar_ci.formats.night_folder import Night
from nightjar_ci.store import tables

_MICROSECOND = datetime.resolution


class SeriesKey(NamedTuple):
    """The unique key of a series; compiled programs have the kind `facts` and no unit."""

    cell: str
    name: str
    kind: str
    unit: str
    better: str


class Keys:
    """A cache of numbers for one process."""

    def __init__(self) -> None:
        self.series: dict[SeriesKey, int] = {}
        self.environments: dict[str, int] = {}

    def learn(self, connection: Connection, series: Iterable[SeriesKey], environments: Iterable[str]) -> None:
        """Adds names without a number; all processes use the same order, so that they never deadlock."""
        new_cells = {key[0] for key in series if key not in self.series}
        new_keys = sorted(set(environments) - self.environments.keys())
        for key in new_keys:
            insert_new(connection, tables.environment, {"key": key})
            query = select(tables.environment.c.id).where(tables.environment.c.key == key)
            self.environments[key] = connection.execute(query).scalar_one()
        for cell in sorted(new_cells):
            self._read_cell(connection, cell)
        for new_series in sorted(set(series) - self.series.keys()):
            insert_new(connection, tables.series, new_series._asdict())
        for cell in sorted(new_cells):
            self._read_cell(connection, cell)

    def _read_cell(self, connection: Connection, cell: str) -> None:
        for row in connection.execute(select(tables.series).where(tables.series.c.cell == cell)):
            self.series[SeriesKey(row.cell, row.name, row.kind, row.unit, row.better)] = row.id


def insert_new(connection: Connection, table: Table, values: Mapping[str, Any]) -> bool:
    dialect = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    return connection.execute(dialect(table).values(**values).on_conflict_do_nothing()).rowcount == 1


def add_night_row(connection: Connection, night: Night) -> int:
    values = {
        "matrix": night.matrix,
        "finished_at": night.finished_at,
        "git_sha": night.git.sha if night.git else None,
        "not_run": list(night.not_run),
        "left_out": list(night.left_out),
    }
    number = read_microseconds(night.started_at)
    while True:
        stored = connection.scalar(select(tables.night.c.number).where(tables.night.c.id == night.id))
        if stored is not None:
            connection.execute(tables.night.update().where(tables.night.c.number == stored).values(values))
            return int(stored)
        row = {"number": number, "id": night.id, "started_at": night.started_at, **values}
        if insert_new(connection, tables.night, row):
            return number
        same = select(func.max(tables.night.c.number)).where(tables.night.c.started_at == night.started_at)
        number = max(number, connection.scalar(same) or 0) + 1  # another night started in the same microsecond


def find_night(connection: Connection, night_id: str) -> int:
    number = connection.scalar(select(tables.night.c.number).where(tables.night.c.id == night_id))
    if number is None:
        raise StoreError(f"the store has no night {night_id!r}.", "`nightjar-ci store --import FOLDER` adds one")
    return int(number)


def read_microseconds(text: str) -> int:
    """Microseconds since 1970 of an ISO 8601 time; one without an offset is UTC.

    >>> read_microseconds("1970-01-01T00:00:01+00:00")
    1000000
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InputError(f"a night's started_at is {text!r}, expected ISO 8601 with offset.") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // _MICROSECOND
