"""The store of all nights: a small API over SQLite (the default) or PostgreSQL.

In: nights, outcomes, results, profiles and verdicts. Out: histories, series and earlier facts. Runs are only ever
added. Adding a run twice changes nothing. A job that runs again is another attempt, and the latest attempt counts.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import finalize

from sqlalchemy import Connection, Engine, Select, delete, insert, select
from sqlalchemy.exc import SQLAlchemyError

from nightjar_ci.errors import StoreError
from nightjar_ci.formats.night_folder import Night
from nightjar_ci.formats.outcome import Outcome
from nightjar_ci.formats.profile import Profile
from nightjar_ci.formats.run_record import Environment, Facts, RunRecord
from nightjar_ci.formats.series import Series
from nightjar_ci.formats.suite import PastSuite
from nightjar_ci.formats.verdict import Verdict
from nightjar_ci.settings import Settings, keep_out_of_git
from nightjar_ci.store import tables
from nightjar_ci.store.engine import BUSY, BUSY_S, READS_ONLY, describe_failure, migrate, open_engine
from nightjar_ci.store.history import (
    count_cut,
    read_latest_verdict,
    read_one,
    read_regressions,
    read_series,
    read_suites,
)
from nightjar_ci.store.keys import Keys, SeriesKey, add_night_row, find_night
from nightjar_ci.store.measures import Measure, Point, StoredRun
from nightjar_ci.store.nights import StoredNight, read_nights
from nightjar_ci.store.recent import Recent, read_recent


@dataclass(frozen=True, slots=True, kw_only=True)
class NightSummary:
    """A night in a list of nights, with the number of completed runs; `finished_at` is None for an unfinished night."""

    id: str
    matrix: str
    started_at: str
    finished_at: str | None
    completed: int
    runs: int


class Store:
    """The database of all nights."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._keys = Keys()
        finalize(self, engine.dispose)  # connections that nobody closes are a warning of Python 3.13

    def add_night(self, night: Night) -> None:
        with self._transaction() as connection:
            add_night_row(connection, night)

    def add_run(
        self,
        night_id: str,
        outcome: Outcome,
        record: RunRecord | None,
        profile: Profile | None = None,
        machine: str | None = None,
    ) -> None:
        """Adds the outcome and the results of a job to a stored night."""
        run = StoredRun(outcome=outcome, record=record, profile=profile, machine=machine)
        self._learn_keys([run])
        with self._transaction() as connection:
            self._add_run(connection, find_night(connection, night_id), run)

    def add_whole_night(self, night: Night, runs: Sequence[StoredRun]) -> None:
        """Adds a night with all of its runs, or nothing."""
        self._learn_keys(runs)
        with self._transaction() as connection:
            number = add_night_row(connection, night)
            for run in runs:
                self._add_run(connection, number, run)

    def add_verdicts(self, night_id: str, verdicts: Sequence[Mapping[str, Any]]) -> None:
        """Replaces the verdicts of a stored night.

        Args:
            verdicts: entries of `nightjar.verdicts/1`, as JSON objects.
        """
        with self._transaction() as connection:
            number = find_night(connection, night_id)
            rows = [
                {
                    "night": number,
                    "position": position,
                    **{name: str(verdict[name]) for name in ("series", "judge", "status")},
                    "body": dict(verdict),
                }
                for position, verdict in enumerate(verdicts)
            ]
            connection.execute(delete(tables.verdict).where(tables.verdict.c.night == number))
            if rows:
                connection.execute(insert(tables.verdict), rows)

    def series_before(self, night_id: str, *, window: int = 200) -> list[Series]:
        """The histories of a night's series, up to and including this night.

        Args:
            night_id: the night, the last one of each series; empty if the store does not have it.

        Returns:
            A series for each measure of the night, by name: curves' last values, samples' medians, profiles' numbers.
        """
        with self._reading() as connection:
            number = connection.scalar(select(tables.night.c.number).where(tables.night.c.id == night_id))
            if number is None:
                return []
            return read_series(connection, number, window)

    def suites_before(self, night_id: str, *, window: int) -> dict[str, list[PastSuite]]:
        """The tests that the cells of a night ran in earlier nights, oldest first; `window` nights at most."""
        with self._reading() as connection:
            number = connection.scalar(select(tables.night.c.number).where(tables.night.c.id == night_id))
            return {} if number is None else read_suites(connection, number, window)

    def count_cut(self, night_id: str) -> int:
        with self._reading() as connection:
            return count_cut(connection, find_night(connection, night_id))

    def recent_before(self, night_id: str) -> Recent:
        with self._reading() as connection:
            return read_recent(connection, night_id)

    def regressions_before(self, night_id: str) -> dict[str, Verdict]:
        """The open regressions of a night's series before this night, with their latest verdict."""
        with self._reading() as connection:
            number = connection.scalar(select(tables.night.c.number).where(tables.night.c.id == night_id))
            if number is None:
                return {}
            return read_regressions(connection, number)

    def history_verdict(self, name: str) -> Verdict | None:
        """The latest verdict on the history of a series, or None; among several machines a regression comes first."""
        with self._reading() as connection:
            return read_latest_verdict(connection, name)

    def history(self, cell: str, name: str) -> list[Point]:
        """The values of a measure of a cell, one for each completed run, oldest night first, then by seed."""
        night, run, measure, series = tables.night, tables.run, tables.measure, tables.series
        query = (
            select(night.c.id, night.c.started_at, run.c.replicate, series, measure.c.value)
            .join_from(series, measure, measure.c.series == series.c.id)
            .join(run, measure.c.run == run.c.id)
            .join(night, measure.c.night == night.c.number)
            .where(series.c.cell == cell, series.c.name == name)
            .order_by(measure.c.night, run.c.replicate, series.c.kind)
        )
        return [
            Point(
                night=row[0],
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
        """The facts of the latest completed run of a cell before a night, or None if there is none.

        Args:
            facts_key: the key of facts (`Environment.facts_key`).
            before_night: id of the night; if the store does not have it, every night counts as earlier.
        """
        run, document = tables.run, tables.document
        with self._reading() as connection:
            query = select(run.c.id, run.c.night).where(run.c.cell == cell, run.c.facts_key == facts_key)
            query = query.where(run.c.state == "completed")
            number = connection.scalar(select(tables.night.c.number).where(tables.night.c.id == before_night))
            if number is not None:
                query = query.where(run.c.night < number)
            latest = connection.execute(query.order_by(run.c.night.desc(), run.c.replicate, run.c.attempt.desc()))
            row = latest.first()
            if row is None:
                return None
            result = connection.scalar(select(document.c.result).where(document.c.run == row.id))
        if result is None:
            return None
        return RunRecord.model_validate(result).facts

    def results_of(self, cell: str, night_id: str) -> list[tuple[Outcome, RunRecord | None]]:
        """The outcome and result of each job of a cell in a night, at its latest attempt."""
        run, document, night = tables.run, tables.document, tables.night
        query = (
            select(document.c.outcome, document.c.result)
            .join_from(run, night, run.c.night == night.c.number)
            .join(document, document.c.run == run.c.id)
            .where(night.c.id == night_id, run.c.cell == cell)
            .order_by(run.c.attempt)
        )
        latest: dict[str, tuple[Outcome, RunRecord | None]] = {}
        for row in self._read(query):
            outcome = Outcome.model_validate(row.outcome)
            record = None if row.result is None else RunRecord.model_validate(row.result)
            latest[outcome.job] = outcome, record
        return list(latest.values())

    def environment_of(self, cell: str, night_id: str) -> Environment | None:
        """The recorded environment of a cell's latest completed run in a night, or None."""
        run, document, night = tables.run, tables.document, tables.night
        number = select(night.c.number).where(night.c.id == night_id).scalar_subquery()
        query = (
            select(document.c.result)
            .join_from(run, document, document.c.run == run.c.id)
            # SQLite without statistics would look at all cells of the night: `+ 0` takes the index of the cell.
            .where(run.c.cell == cell, run.c.night + 0 == number, run.c.state == "completed")
            .where(document.c.result.is_not(None))
            .order_by(run.c.replicate, run.c.attempt.desc())
        )
        with self._reading() as connection:
            result = connection.scalar(query)
        if result is None:
            return None
        return RunRecord.model_validate(result).environment

    def latest_nights(self, *, window: int, matrix: str | None = None) -> list[StoredNight]:
        """The latest nights, of one matrix or of all, oldest first."""
        with self._reading() as connection:
            return read_nights(connection, window, matrix)

    def nights(self) -> list[NightSummary]:
        """All nights, oldest first."""
        night, run = tables.night, tables.run
        states: dict[int, dict[str, str]] = {}
        for row in self._read(select(run.c.night, run.c.job, run.c.state).order_by(run.c.night, run.c.attempt)):
            states.setdefault(row.night, {})[row.job] = row.state
        return [
            NightSummary(
                id=row.id,
                matrix=row.matrix,
                started_at=row.started_at,
                finished_at=row.finished_at,
                completed=list(states.get(row.number, {}).values()).count("completed"),
                runs=len(states.get(row.number, {})),
            )
            for row in self._read(select(night).order_by(night.c.number))
        ]

    def series(self) -> list[tuple[str, str]]:
        series = tables.series
        query = select(series.c.cell, series.c.name).distinct().order_by(series.c.cell, series.c.name)
        return [(row.cell, row.name) for row in self._read(query)]

    def one_series(self, name: str) -> Series | None:
        with self._reading() as connection:
            return read_one(connection, name)

    def judged(self) -> dict[str, tuple[str, ...]]:
        """The judges of every series that ever had a verdict."""
        verdict, judges = tables.verdict, dict[str, tuple[str, ...]]()
        columns = verdict.c.series, verdict.c.judge
        for row in self._read(select(*columns).distinct().order_by(*columns)):
            judges[row.series] = (*judges.get(row.series, ()), row.judge)
        return judges

    def night_ids(self) -> list[str]:
        return [row.id for row in self._read(select(tables.night.c.id).order_by(tables.night.c.number))]

    def close(self) -> None:
        self._engine.dispose()

    def _learn_keys(self, runs: Sequence[StoredRun]) -> None:
        """Gives every series and environment of the runs its number, in a separate transaction."""
        series = [_series_key(run, measure) for run in runs for measure in run.measures]
        environments = [_environment_key(run) for run in runs if run.measures]
        try:
            with self._transaction() as connection:
                self._keys.learn(connection, series, environments)
        except BaseException:
            self._keys = Keys()  # the database gives the numbers of this transaction to others
            raise

    def _add_run(self, connection: Connection, night: int, stored: StoredRun) -> None:
        run, measure, outcome = tables.run, tables.measure, stored.outcome
        documents = {
            "outcome": json.loads(outcome.model_dump_json()),
            "result": _as_json(stored.record),
            "profile": _as_json(stored.profile),
        }
        digest = _digest(*documents.values())
        job = (run.c.night == night) & (run.c.job == outcome.job)
        earlier = connection.execute(select(run.c.id, run.c.attempt, run.c.digest).where(job)).all()
        if any(attempt.digest == digest for attempt in earlier):
            return
        facts_key = None
        if stored.record is not None:
            facts_key = stored.record.environment.facts_key
        added = connection.execute(
            insert(run).values(
                night=night,
                attempt=1 + max((row.attempt for row in earlier), default=0),
                **outcome.model_dump(include={"job", "cell", "replicate", "kind", "state"}),
                facts_key=facts_key,
                digest=digest,
            )
        )
        (run_id,) = added.inserted_primary_key or (None,)
        connection.execute(insert(tables.document).values(run=run_id, **documents))
        if earlier:
            cell_series = select(tables.series.c.id).where(tables.series.c.cell == outcome.cell)
            old = measure.c.run.in_([row.id for row in earlier])
            connection.execute(delete(measure).where(measure.c.series.in_(cell_series), measure.c.night == night, old))
        if stored.measures:
            shared = {"night": night, "run": run_id, "environment": self._keys.environments[_environment_key(stored)]}
            rows = [{"series": self._keys.series[_series_key(stored, m)], "value": m.value} for m in stored.measures]
            connection.execute(insert(measure), [{**shared, **row} for row in rows])

    def _read(self, query: Select[Any]) -> Sequence[Any]:
        with self._reading() as connection:
            return connection.execute(query).all()

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        with self._transaction(self._engine.execution_options(**{READS_ONLY: True})) as connection:
            yield connection

    @contextmanager
    def _transaction(self, engine: Engine | None = None) -> Iterator[Connection]:
        try:
            with (engine or self._engine).begin() as connection:
                yield connection
        except SQLAlchemyError as error:
            raise describe_failure(self._engine.url, error) from error


def open_store(settings: Settings) -> Store:
    """Opens the store of the settings; it is created or migrated if needed. A busy server gets half a minute.

    Raises:
        StoreError: it cannot be reached, or a newer version wrote it.
    """
    engine, deadline = open_engine(settings.database_url), time.monotonic() + BUSY_S
    while True:
        try:
            keep_out_of_git(settings)
            migrate(engine)
            return Store(engine)
        except (SQLAlchemyError, StoreError, OSError) as error:
            engine.dispose()
            if isinstance(error, StoreError):
                raise
            if time.monotonic() > deadline or not any(sign in str(error) for sign in BUSY):
                raise describe_failure(engine.url, error) from error
        time.sleep(1)


def _as_json(document: RunRecord | Profile | None) -> Any:
    return None if document is None else json.loads(document.model_dump_json(by_alias=True))


def _digest(*documents: Any) -> str:
    texts = (json.dumps(document, sort_keys=True, separators=(",", ":")) for document in documents)
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def _series_key(run: StoredRun, measure: Measure) -> SeriesKey:
    return SeriesKey(run.outcome.cell, measure.name, measure.kind, measure.unit, measure.better)


def _environment_key(run: StoredRun) -> str:
    """The machine that a run was measured on; if unknown, its job's environment."""
    if run.record is not None:
        return run.record.environment.measured_on
    return run.machine or run.outcome.environment
