"""The series of a matrix's recent nights, which show a night's absent series.

In: a connection and the number of a night. Out: `Recent`. A night counts for a cell if it finished, did not leave out
the cell, and no job of the cell failed: a failed job is reported as such, and tells nothing about series.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy import Connection, func, select

from nightjar_ci.formats.series_name import parse_series_name
from nightjar_ci.formats.verdict import Verdict
from nightjar_ci.store import tables
from nightjar_ci.store.history import read_verdict
from nightjar_ci.store.keys import SeriesKey

NIGHTS = 5  # nights that make a series due
FAILED = -1  # in place of a cell's number of jobs
_LOOKBACK = 20  # nights in which to search them


@dataclass(frozen=True, slots=True, kw_only=True)
class Recent:
    """The recent nights of a matrix.

    Attributes:
        order: their ids, oldest first, at most `_LOOKBACK`.
        nights: for each cell the ids of the nights that count, newest first, at most `NIGHTS`.
        had: for each series the nights in which every job of its cell has a finite value, with their mean.
        absent: by series, the latest night that was judged to lack it, and that verdict.
    """

    order: Sequence[str] = ()
    nights: Mapping[str, Sequence[str]] = field(default_factory=dict)
    had: Mapping[SeriesKey, Mapping[str, float]] = field(default_factory=dict)
    absent: Mapping[str, tuple[str, Verdict]] = field(default_factory=dict)

    def place(self, night: str) -> float:
        """The position of a night in their order; by its id if it is another night, such as an older one."""
        if night in self.order:
            return self.order.index(night)
        return sum(earlier < night for earlier in self.order) - 0.5


def read_recent(connection: Connection, night_id: str) -> Recent:
    """The nights of the same matrix before a night; empty if the store does not have the night."""
    night = tables.night
    current = connection.execute(select(night).where(night.c.id == night_id)).first()
    if current is None:
        return Recent()
    earlier = select(night.c.number, night.c.id, night.c.left_out).where(night.c.matrix == current.matrix)
    earlier = earlier.where(night.c.number < current.number, night.c.finished_at.is_not(None))
    rows = connection.execute(earlier.order_by(night.c.number.desc()).limit(_LOOKBACK)).all()
    ids = {row.number: row.id for row in rows}
    left_out = {row.number: set(row.left_out or ()) for row in rows}
    jobs = _read_jobs(connection, list(ids))
    nights = {
        cell: [ids[number] for number in ids if cell not in left_out[number] and counts.get(number) != FAILED][:NIGHTS]
        for cell, counts in jobs.items()
    }
    return Recent(
        order=tuple(reversed(ids.values())),
        nights=nights,
        had=_read_values(connection, jobs, ids) | _read_programs(connection, ids),
        absent=_read_absent(connection, ids),
    )


def _read_jobs(connection: Connection, numbers: Sequence[int]) -> dict[str, dict[int, int]]:
    """For each cell its nights with the number of its jobs, `FAILED` if one of them did not complete."""
    run, states = tables.run, dict[tuple[int, str], tuple[str, str]]()
    query = select(run.c.night, run.c.job, run.c.cell, run.c.state).where(run.c.night.in_(numbers))
    for row in connection.execute(query.order_by(run.c.attempt)):
        states[row.night, row.job] = row.cell, row.state
    counts: dict[str, dict[int, int]] = defaultdict(dict)
    for (number, _), (cell, state) in states.items():
        before = counts[cell].get(number, 0)
        if state != "completed" or before == FAILED:
            counts[cell][number] = FAILED
        else:
            counts[cell][number] = before + 1
    return counts


def _read_values(
    connection: Connection, jobs: Mapping[str, Mapping[int, int]], ids: Mapping[int, str]
) -> dict[SeriesKey, dict[str, float]]:
    series, measure, cells = tables.series, tables.measure, list(jobs)
    had: dict[SeriesKey, dict[str, float]] = defaultdict(dict)
    for start in range(0, len(cells), 500):  # a statement has a limited number of parameters
        query = (
            select(series, measure.c.night)
            .add_columns(func.avg(measure.c.value).label("mean"), func.count(measure.c.value).label("finite"))
            .join_from(series, measure, measure.c.series == series.c.id)
            .where(series.c.cell.in_(cells[start : start + 500]), measure.c.night.in_(list(ids)))
            .group_by(series.c.id, measure.c.night)
        )
        for row in connection.execute(query):
            if row.finite == jobs[row.cell].get(row.night):
                key = SeriesKey(row.cell, row.name, row.kind, row.unit, row.better)
                had[key][ids[row.night]] = row.mean
    return had


def _read_programs(connection: Connection, ids: Mapping[int, str]) -> dict[SeriesKey, dict[str, float]]:
    """The nights of compiled programs, from the verdicts on their facts: programs have no measures."""
    verdict, had = tables.verdict, dict[SeriesKey, dict[str, float]]()
    query = select(verdict.c.series, verdict.c.night)
    query = query.where(verdict.c.judge == "facts", verdict.c.night.in_(list(ids)))
    for row in connection.execute(query):
        had.setdefault(SeriesKey(*parse_series_name(row.series), "facts", "", ""), {})[ids[row.night]] = 0.0
    return had


def _read_absent(connection: Connection, ids: Mapping[int, str]) -> dict[str, tuple[str, Verdict]]:
    """By series the latest night in which it was absent, and that night's verdict."""
    verdict = tables.verdict
    query = select(verdict.c.series, verdict.c.night, verdict.c.body)
    query = query.where(verdict.c.judge == "presence", verdict.c.night.in_(list(ids)))
    rows = connection.execute(query.order_by(verdict.c.night)).all()
    return {row.series: (ids[row.night], read_verdict(row.series, row.body)) for row in rows}
