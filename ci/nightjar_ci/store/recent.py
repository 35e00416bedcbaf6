"""What the recent nights of a matrix measured, so that a night that lacks some of it is seen.

In: a connection and the number of a night. Out: `Recent`. A night counts for a cell if it finished, was not asked to
leave the cell out, and no job of the cell failed in it: a failed job is said by itself, and says nothing about series.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sqlalchemy import Connection, func, select

from nightjar_ci.formats.verdict import Verdict
from nightjar_ci.store import tables
from nightjar_ci.store.history import read_verdict

NIGHTS = 5  # that are asked whether they had a series
FAILED = -1  # in place of the number of jobs of a cell
_LOOKBACK = 20  # nights among which those are looked for


class SeriesKey(NamedTuple):
    """A series as the store tells it from others; compiled programs have the kind `facts` and no unit."""

    cell: str
    name: str
    kind: str
    unit: str
    better: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Recent:
    """The recent nights of a matrix.

    Attributes:
        order: the ids of all that were looked at, oldest first, at most `_LOOKBACK`.
        nights: for each cell the ids of the nights that count, newest first, at most `NIGHTS`.
        had: for each series the nights in which every job of its cell left a finite value, with their mean.
        absent: the latest verdict that a series is due and absent, by the name of the series.
    """

    order: Sequence[str] = ()
    nights: Mapping[str, Sequence[str]] = field(default_factory=dict)
    had: Mapping[SeriesKey, Mapping[str, float]] = field(default_factory=dict)
    absent: Mapping[str, tuple[str, Verdict]] = field(default_factory=dict)

    def place(self, night: str) -> float:
        """Where a night stands in their order; by its id where it is none of them, as tonight or a night long ago."""
        return self.order.index(night) if night in self.order else sum(one < night for one in self.order) - 0.5


def read_recent(connection: Connection, night_id: str) -> Recent:
    """The nights of the same matrix before a night; none of a night that the store does not know."""
    night = tables.night
    tonight = connection.execute(select(night).where(night.c.id == night_id)).first()
    if tonight is None:
        return Recent()
    earlier = select(night.c.number, night.c.id, night.c.left_out).where(night.c.matrix == tonight.matrix)
    earlier = earlier.where(night.c.number < tonight.number, night.c.finished_at.is_not(None))
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
    """For each cell its nights with the number of its jobs, `FAILED` where one of them did not complete."""
    run, states = tables.run, dict[tuple[int, str], tuple[str, str]]()
    query = select(run.c.night, run.c.job, run.c.cell, run.c.state).where(run.c.night.in_(numbers))
    for row in connection.execute(query.order_by(run.c.attempt)):
        states[row.night, row.job] = row.cell, row.state
    counts: dict[str, dict[int, int]] = defaultdict(dict)
    for (number, _), (cell, state) in states.items():
        before = counts[cell].get(number, 0)
        counts[cell][number] = FAILED if FAILED in (before, -(state != "completed")) else before + 1
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
    """Compiled programs are no measures: the verdicts on their facts say in which nights they were there."""
    one, had = tables.verdict, dict[SeriesKey, dict[str, float]]()
    query = select(one.c.series, one.c.night).where(one.c.judge == "facts", one.c.night.in_(list(ids)))
    for row in connection.execute(query):
        cell, _, name = row.series.partition("/")
        had.setdefault(SeriesKey(cell, name, "facts", "", ""), {})[ids[row.night]] = 0.0
    return had


def _read_absent(connection: Connection, ids: Mapping[int, str]) -> dict[str, tuple[str, Verdict]]:
    """Name of a series to the latest night in which it was absent, and that night's verdict."""
    one = tables.verdict
    query = select(one.c.series, one.c.night, one.c.body).where(one.c.judge == "presence", one.c.night.in_(list(ids)))
    rows = connection.execute(query.order_by(one.c.night)).all()
    return {row.series: (ids[row.night], read_verdict(row.series, row.body)) for row in rows}
