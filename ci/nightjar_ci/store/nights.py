"""The latest nights with their jobs and verdicts, for the status page.

In: the settings. Out: a `StoredNight` for each of the latest nights, oldest first. A few queries are enough, and none
reads results. The body of a verdict is read only if it is not ok, and one run of a night tells where the night ran.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from sqlalchemy import Connection, case, func, select
from sqlalchemy.exc import SQLAlchemyError

from nightjar_ci.formats.outcome import Outcome
from nightjar_ci.formats.run_record import describe_devices
from nightjar_ci.formats.verdict import Status, Verdict
from nightjar_ci.settings import Settings
from nightjar_ci.store import tables
from nightjar_ci.store.engine import READS_ONLY, describe_failure, open_engine
from nightjar_ci.store.history import read_verdict
from nightjar_ci.store.store import open_store

Judged = tuple[str, str]  # series, judge


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredNight:
    """One night.

    Attributes:
        finished_at: None while it runs, and for ever where it was killed.
        ran: how many jobs ended, at their latest attempt.
        not_run: planned jobs that have no outcome.
        failed: the outcomes of those that did not complete.
        statuses: the status of every verdict, by series and judge.
        loud: the verdicts that are not ok, worst first.
        environment: what the jobs ran in: `current`, `uv:...`, `image:...`; None where no job ended.
        devices: such as `1 x cpu`; None where no job left a result.
        packages: name to version, as the first result says.
    """

    id: str
    matrix: str
    started_at: str
    finished_at: str | None
    git_sha: str | None
    ran: int
    not_run: tuple[str, ...] = ()
    failed: tuple[Outcome, ...] = ()
    statuses: Mapping[Judged, Status] = field(default_factory=lambda: MappingProxyType({}))
    loud: tuple[Verdict, ...] = ()
    environment: str | None = None
    devices: str | None = None
    packages: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


def read_nights(settings: Settings, *, window: int) -> list[StoredNight]:
    """The latest nights, oldest first.

    Args:
        settings: they name the store, which is made or migrated where needed.
        window: how many nights at most.

    Raises:
        StoreError: the store cannot be read.
    """
    open_store(settings).close()
    engine = open_engine(settings.database_url)
    try:
        with engine.execution_options(**{READS_ONLY: True}).begin() as connection:
            return _read(connection, window)
    except SQLAlchemyError as error:
        raise describe_failure(engine.url, error) from error
    finally:
        engine.dispose()


def _read(connection: Connection, window: int) -> list[StoredNight]:
    night = tables.night
    rows = connection.execute(select(night).order_by(night.c.number.desc()).limit(window)).all()[::-1]
    if not rows:
        return []
    first = rows[0].number
    states, failed = _jobs(connection, first)
    statuses, loud = _verdicts(connection, first)
    places = _places(connection, first)
    return [
        StoredNight(
            id=row.id,
            matrix=row.matrix,
            started_at=row.started_at,
            finished_at=row.finished_at,
            git_sha=row.git_sha,
            ran=len(states[row.number]),
            not_run=tuple(row.not_run or ()),
            failed=tuple(failed[row.number]),
            statuses=statuses[row.number],
            loud=tuple(loud[row.number]),
            **places.get(row.number, {}),
        )
        for row in rows
    ]


def _jobs(connection: Connection, first: int) -> tuple[dict[int, dict[str, int]], dict[int, list[Outcome]]]:
    """For each night the latest run of every job, and the outcomes of those that did not complete."""
    run, document = tables.run, tables.document
    latest: dict[int, dict[str, int]] = defaultdict(dict)
    broken: dict[int, int] = {}
    query = select(run.c.id, run.c.night, run.c.job, run.c.state).where(run.c.night >= first)
    for row in connection.execute(query.order_by(run.c.attempt)):
        broken.pop(latest[row.night].get(row.job, -1), None)
        latest[row.night][row.job] = row.id
        if row.state != "completed":
            broken[row.id] = row.night
    failed: dict[int, list[Outcome]] = defaultdict(list)
    for piece in _pieces(sorted(broken)):
        for one in connection.execute(select(document.c.run, document.c.outcome).where(document.c.run.in_(piece))):
            failed[broken[one.run]].append(Outcome.model_validate(one.outcome))
    return latest, failed


def _verdicts(connection: Connection, first: int) -> tuple[dict[int, dict[Judged, Status]], dict[int, list[Verdict]]]:
    """The status of every verdict of each night, and the verdicts that are not ok."""
    one = tables.verdict
    statuses: dict[int, dict[Judged, Status]] = defaultdict(dict)
    for row in connection.execute(
        select(one.c.night, one.c.series, one.c.judge, one.c.status).where(one.c.night >= first)
    ):
        statuses[row.night][row.series, row.judge] = row.status
    loud: dict[int, list[Verdict]] = defaultdict(list)
    query = select(one.c.night, one.c.series, one.c.body).where(one.c.night >= first, one.c.status != "ok")
    for found in connection.execute(query.order_by(one.c.night, one.c.position)):
        loud[found.night].append(read_verdict(found.series, found.body))
    return statuses, loud


def _places(connection: Connection, first: int) -> dict[int, dict[str, Any]]:
    """Where each night ran, as one of its runs says: one that left a result, where there is one."""
    run, document = tables.run, tables.document
    query = select(run.c.night, func.min(run.c.id).label("any"), func.min(_with_facts()).label("told"))
    chosen = {
        row.told if row.told is not None else row.any: row.night
        for row in connection.execute(query.where(run.c.night >= first).group_by(run.c.night))
    }
    places = {}
    for piece in _pieces(list(chosen)):
        for row in connection.execute(select(document).where(document.c.run.in_(piece))):
            place: dict[str, Any] = {"environment": row.outcome["environment"]}
            if row.result is not None:
                told = row.result["environment"]
                place |= {"devices": describe_devices(told["devices"]), "packages": told["packages"]}
            places[chosen[row.run]] = place
    return places


def _with_facts() -> Any:
    """The id of a run that left a result: those alone have a key of facts."""
    run = tables.run
    return case((run.c.facts_key.is_not(None), run.c.id))


def _pieces(numbers: Sequence[int]) -> list[Sequence[int]]:
    """Numbers in pieces, for a statement has a limited number of parameters."""
    return [numbers[start : start + 500] for start in range(0, len(numbers), 500)]
