"""The latest nights with their jobs and verdicts, for the status page.

In: a connection. Out: a `StoredNight` for each of the latest nights, oldest first. A few queries are enough, and none
reads results. The body of a verdict is read only if it is not ok, and a night's first job by name stands for its
environment, even if it failed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from sqlalchemy import Connection, select

from nightjar_ci.formats.outcome import Outcome
from nightjar_ci.formats.run_record import describe_devices
from nightjar_ci.formats.verdict import Status, Verdict
from nightjar_ci.store import tables
from nightjar_ci.store.history import read_verdict

Judged = tuple[str, str]  # series, judge


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredNight:
    """One night.

    Attributes:
        finished_at: None while it runs, or if it was killed.
        ran: number of jobs with an outcome.
        not_run: planned jobs without an outcome.
        failed: the outcomes of jobs that did not complete, at their latest attempt.
        statuses: the status of every verdict, by series and judge.
        loud: the verdicts that are not ok, worst first.
        environment: of the first job by name: `current`, `uv:...`, `image:...`; None if no job ended.
        devices: such as `1 x cpu`, of the first job with a result; None without one.
        packages: name to version, from the same result; empty if that job had another environment.
        python: version, from the same result as the packages.
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
    python: str | None = None


def read_nights(connection: Connection, window: int, matrix: str | None = None) -> list[StoredNight]:
    night = tables.night
    query = select(night).order_by(night.c.number.desc()).limit(window)
    if matrix is not None:
        query = query.where(night.c.matrix == matrix)
    rows = connection.execute(query).all()[::-1]
    if not rows:
        return []
    numbers = [row.number for row in rows]
    states, failed = _jobs(connection, numbers)
    statuses, loud = _verdicts(connection, numbers)
    environments = _environments(connection, numbers)
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
            **environments.get(row.number, {}),
        )
        for row in rows
    ]


def _jobs(connection: Connection, numbers: Sequence[int]) -> tuple[dict[int, dict[str, int]], dict[int, list[Outcome]]]:
    """For each night the latest run of every job, and the outcomes of runs that did not complete."""
    run, document = tables.run, tables.document
    latest: dict[int, dict[str, int]] = defaultdict(dict)
    broken: dict[int, int] = {}
    query = select(run.c.id, run.c.night, run.c.job, run.c.state).where(run.c.night.in_(numbers))
    for row in connection.execute(query.order_by(run.c.attempt)):
        broken.pop(latest[row.night].get(row.job, -1), None)
        latest[row.night][row.job] = row.id
        if row.state != "completed":
            broken[row.id] = row.night
    failed: dict[int, list[Outcome]] = defaultdict(list)
    for chunk in _chunks(sorted(broken)):
        query = select(document.c.run, document.c.outcome).where(document.c.run.in_(chunk))
        for failed_run in connection.execute(query):
            failed[broken[failed_run.run]].append(Outcome.model_validate(failed_run.outcome))
    return latest, failed


def _verdicts(
    connection: Connection, numbers: Sequence[int]
) -> tuple[dict[int, dict[Judged, Status]], dict[int, list[Verdict]]]:
    verdict = tables.verdict
    statuses: dict[int, dict[Judged, Status]] = defaultdict(dict)
    columns = select(verdict.c.night, verdict.c.series, verdict.c.judge, verdict.c.status)
    for row in connection.execute(columns.where(verdict.c.night.in_(numbers))):
        statuses[row.night][row.series, row.judge] = row.status
    loud: dict[int, list[Verdict]] = defaultdict(list)
    bodies = select(verdict.c.night, verdict.c.series, verdict.c.body)
    bodies = bodies.where(verdict.c.night.in_(numbers), verdict.c.status != "ok")
    for night, series, body in connection.execute(bodies.order_by(verdict.c.night, verdict.c.position)):
        loud[night].append(read_verdict(series, body))
    return statuses, loud


def _environments(connection: Connection, numbers: Sequence[int]) -> dict[int, dict[str, Any]]:
    """The environment of each night: of its first job by name, and the devices of the first one with a result."""
    run, document = tables.run, tables.document
    query = select(run.c.night, run.c.id, run.c.facts_key).where(run.c.night.in_(numbers))
    rows = connection.execute(query.order_by(run.c.job.desc(), run.c.id)).all()
    named = {row.night: row.id for row in rows}
    measured = {row.night: row.id for row in rows if row.facts_key is not None}  # only results have a facts key
    of_run: dict[int, tuple[str, dict[str, Any]]] = {}
    for chunk in _chunks([*{*named.values(), *measured.values()}]):
        for row in connection.execute(select(document).where(document.c.run.in_(chunk))):
            of_run[row.run] = row.outcome["environment"], (row.result or {}).get("environment", {})
    environments: dict[int, dict[str, Any]] = {}
    for night, number in named.items():
        first, _ = of_run.get(number, (None, {}))
        environment, recorded = of_run.get(measured.get(night, number), (None, {}))
        environments[night] = {"environment": first}
        if recorded:
            environments[night]["devices"] = describe_devices(recorded["devices"])
        if recorded and environment == first:
            environments[night] |= {name: recorded[name] for name in ("packages", "python")}
    return environments


def _chunks(numbers: Sequence[int]) -> list[Sequence[int]]:
    """Numbers in chunks, since a statement has a limited number of parameters."""
    return [numbers[start : start + 500] for start in range(0, len(numbers), 500)]
