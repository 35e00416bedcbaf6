"""How are nights remembered and asked for? A small API over SQLite (the default) or PostgreSQL.

In: nights, outcomes, results and verdicts; adding what is there already replaces it. Out: histories and earlier facts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection, Engine, Select, delete, insert, select
from sqlalchemy.exc import SQLAlchemyError

from nightjar_ci.errors import StoreError
from nightjar_ci.night import Night
from nightjar_ci.outcome import Outcome
from nightjar_ci.record import Better, Facts, RunRecord
from nightjar_ci.settings import Settings
from nightjar_ci.store import tables
from nightjar_ci.store.engine import describe_failure, migrate, open_engine
from nightjar_ci.store.measures import MeasureKind, summarize


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One value of a measure's history.

    Attributes:
        night: id of the night.
        started_at: when the night started.
        replicate: seed of the run, or None.
        kind: a curve's last value, or a sample's median after warm-up.
        value: NaN where the run's was not finite.
        unit: unit of the value.
        better: which direction is better.
    """

    night: str
    started_at: str
    replicate: int | None
    kind: MeasureKind
    value: float
    unit: str
    better: Better


@dataclass(frozen=True, slots=True, kw_only=True)
class NightSummary:
    """A night in a list of nights: how many of its runs completed."""

    id: str
    matrix: str
    started_at: str
    finished_at: str | None
    completed: int
    runs: int


class Store:
    """The memory across nights."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def add_night(self, night: Night) -> None:
        """Remembers a night (without its jobs).

        Raises:
            StoreError: the store cannot be written.
        """
        values = {
            "matrix": night.matrix,
            "started_at": night.started_at,
            "finished_at": night.finished_at,
            "git_sha": night.git.sha if night.git else None,
        }
        with self._transaction() as connection:
            known = tables.night.c.id == night.id
            if connection.execute(tables.night.update().where(known).values(values)).rowcount == 0:
                connection.execute(insert(tables.night).values(id=night.id, **values))

    def add_run(self, night_id: str, outcome: Outcome, record: RunRecord | None) -> None:
        """Remembers what became of a job of a night, and its result; the night is there already.

        Raises:
            StoreError: the store cannot be written.
        """
        result = None if record is None else json.loads(record.model_dump_json(by_alias=True))
        with self._transaction() as connection:
            run, measure = tables.run, tables.measure
            same = select(run.c.id).where(run.c.night == night_id, run.c.job == outcome.job)
            connection.execute(delete(measure).where(measure.c.run.in_(same)))
            connection.execute(delete(run).where(run.c.night == night_id, run.c.job == outcome.job))
            added = connection.execute(
                insert(run).values(
                    night=night_id,
                    **outcome.model_dump(include={"job", "cell", "replicate", "kind", "state"}),
                    facts_key=record.environment.facts_key if record else None,
                    outcome=json.loads(outcome.model_dump_json()),
                    result=result,
                )
            )
            (run_id,) = added.inserted_primary_key or (None,)
            rows = [{"run": run_id, **asdict(one)} for one in summarize(record)] if record else []
            if rows:
                connection.execute(insert(measure), rows)

    def add_verdicts(self, night_id: str, verdicts: Sequence[Mapping[str, Any]]) -> None:
        """Remembers the verdicts of a night, instead of earlier ones; the night is there already.

        Args:
            night_id: id of the night.
            verdicts: entries of `nightjar.verdicts/1`, as JSON objects.

        Raises:
            StoreError: the store cannot be written.
        """
        rows = [
            {
                "night": night_id,
                "position": position,
                **{name: str(one[name]) for name in ("series", "judge", "status")},
                "body": dict(one),
            }
            for position, one in enumerate(verdicts)
        ]
        with self._transaction() as connection:
            connection.execute(delete(tables.verdict).where(tables.verdict.c.night == night_id))
            if rows:
                connection.execute(insert(tables.verdict), rows)

    def history(self, cell: str, name: str) -> list[Point]:
        """The values of a measure of a cell, one for each completed run, oldest night first, then by seed."""
        night, run, measure = tables.night, tables.run, tables.measure
        query = (
            select(night.c.id, night.c.started_at, run.c.replicate, measure)
            .join_from(measure, run, measure.c.run == run.c.id)
            .join(night, run.c.night == night.c.id)
            .where(run.c.cell == cell, measure.c.name == name, run.c.state == "completed")
            .order_by(night.c.started_at, night.c.id, run.c.replicate, measure.c.kind)
        )
        return [
            Point(
                night=row.id,
                started_at=row.started_at,
                replicate=row.replicate,
                kind=row.kind,
                value=math.nan if row.value is None else row.value,
                unit=row.unit,
                better=row.better,
            )
            for row in self._read(query)
        ]

    def latest_facts(self, cell: str, facts_key: str, before_night: str) -> tuple[Facts, ...] | None:
        """The facts of the latest completed run of a cell before a night, or None where there is none.

        Args:
            cell: the cell.
            facts_key: what facts depend on (`Environment.facts_key`).
            before_night: id of the night; where the store does not know it, every night is before it.
        """
        night, run = tables.night, tables.run
        query = (
            select(run.c.result)
            .join_from(run, night, run.c.night == night.c.id)
            .where(run.c.cell == cell, run.c.facts_key == facts_key, run.c.state == "completed")
            .where(night.c.id != before_night, run.c.result.is_not(None))
            .order_by(night.c.started_at.desc(), night.c.id.desc(), run.c.replicate)
            .limit(1)
        )
        started = self._read(select(night.c.started_at).where(night.c.id == before_night))
        if started:
            query = query.where(night.c.started_at <= started[0].started_at)
        found = self._read(query)
        return RunRecord.model_validate(found[0].result).facts if found else None

    def nights(self) -> list[NightSummary]:
        """All nights, oldest first."""
        night, run = tables.night, tables.run
        states: dict[str, list[str]] = {}
        for row in self._read(select(run.c.night, run.c.state)):
            states.setdefault(row.night, []).append(row.state)
        return [
            NightSummary(
                id=row.id,
                matrix=row.matrix,
                started_at=row.started_at,
                finished_at=row.finished_at,
                completed=states.get(row.id, []).count("completed"),
                runs=len(states.get(row.id, [])),
            )
            for row in self._read(select(night).order_by(night.c.started_at, night.c.id))
        ]

    def series(self) -> list[tuple[str, str]]:
        """Every cell with every name of its measures."""
        run, measure = tables.run, tables.measure
        query = (
            select(run.c.cell, measure.c.name)
            .join_from(measure, run, measure.c.run == run.c.id)
            .distinct()
            .order_by(run.c.cell, measure.c.name)
        )
        return [(row.cell, row.name) for row in self._read(query)]

    def close(self) -> None:
        """Lets go of all connections."""
        self._engine.dispose()

    def _read(self, query: Select[Any]) -> Sequence[Any]:
        with self._transaction() as connection:
            return connection.execute(query).all()

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        try:
            with self._engine.begin() as connection:
                yield connection
        except SQLAlchemyError as error:
            raise describe_failure(self._engine.url, error) from error


def open_store(settings: Settings) -> Store:
    """Opens the store that the settings name; it is made or migrated where needed.

    Raises:
        StoreError: it cannot be reached, or a newer version has written it.
    """
    engine = open_engine(settings.database_url)
    try:
        migrate(engine)
    except (SQLAlchemyError, StoreError, OSError) as error:
        engine.dispose()
        if isinstance(error, StoreError):
            raise
        raise describe_failure(engine.url, error) from error
    return Store(engine)
