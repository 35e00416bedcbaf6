"""The test suites of nights, as the results of their jobs hold them.

In: a connection and the number of a night. Out: for each cell of the night that ran tests, its tests in earlier nights;
and the number of tests of the night itself that had no time to run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from sqlalchemy import Connection, select

from nightjar_ci.formats.run_record import RunRecord
from nightjar_ci.formats.suite import PastSuite, join_suites
from nightjar_ci.store import tables


def read_suites(connection: Connection, number: int, window: int) -> dict[str, list[PastSuite]]:
    """The suites of earlier nights by cell, oldest night first."""
    run = tables.run
    cells = select(run.c.cell).where(run.c.night == number, run.c.kind == "test").distinct()
    suites: dict[str, list[PastSuite]] = {}
    for cell in connection.scalars(cells).all():
        past = select(run.c.night).where(run.c.cell == cell, run.c.night < number, run.c.state == "completed")
        nights = connection.scalars(past.distinct().order_by(run.c.night.desc()).limit(window)).all()
        suites[cell] = _read_cell(connection, cell, nights)
    return suites


def count_cut(connection: Connection, number: int) -> int:
    """The number of a night's tests that had no time to run."""
    run = tables.run
    cells = select(run.c.cell).where(run.c.night == number, run.c.kind == "test").distinct()
    past = [suite for cell in connection.scalars(cells).all() for suite in _read_cell(connection, cell, [number])]
    return sum(one.suite.cut for one in past)


def _read_cell(connection: Connection, cell: str, nights: Sequence[int]) -> list[PastSuite]:
    run, document, night = tables.run, tables.document, tables.night
    query = (
        select(night.c.number, night.c.id, run.c.job, run.c.state, document.c.result)
        .join_from(run, night, run.c.night == night.c.number)
        .join(document, document.c.run == run.c.id)
        .where(run.c.cell == cell, run.c.night.in_(nights))
        .order_by(night.c.number, run.c.attempt)
    )
    latest: dict[tuple[int, str], dict[str, RunRecord]] = defaultdict(dict)
    for row in connection.execute(query):
        if row.state == "completed" and row.result is not None:
            latest[row.number, row.id][row.job] = RunRecord.model_validate(row.result)
    return [
        PastSuite(
            night=name,
            machine=next(iter(records.values())).environment.measured_on,
            suite=join_suites([record.tests for record in records.values() if record.tests is not None]),
        )
        for (_, name), records in latest.items()
        if any(record.tests is not None for record in records.values())
    ]
