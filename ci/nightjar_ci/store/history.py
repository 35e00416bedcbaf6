"""Histories of all series of a night, read with two queries and NumPy.

In: a connection and the number of a night. Out: `Series`. The window counts only nights in which a series was measured,
so a weekly job has as long a history as a nightly one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError
from sqlalchemy import Connection, exists, func, select

from nightjar_ci.errors import StoreError
from nightjar_ci.formats.run_record import RunRecord
from nightjar_ci.formats.series import Series
from nightjar_ci.formats.series_name import parse_series_name
from nightjar_ci.formats.suite import PastSuite, join_suites
from nightjar_ci.formats.verdict import Verdict
from nightjar_ci.store import tables

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


def read_series(connection: Connection, night: int, window: int) -> list[Series]:
    """The series that were measured in a night, by name.

    Args:
        window: largest number of nights of each series, including this one.
    """
    series, measure = tables.series, tables.measure
    measured = select(measure.c.series).distinct().where(_measured_in(night))
    series_rows = {row.id: row for row in connection.execute(select(series).where(series.c.id.in_(measured)))}
    if not series_rows:
        return []
    earlier = measure.alias("earlier")
    first = (
        select(earlier.c.night)
        .where(earlier.c.series == series.c.id, earlier.c.night <= night)
        .group_by(earlier.c.night)
        .order_by(earlier.c.night.desc())
        .limit(1)
        .offset(window - 1)
        .correlate(series)
        .scalar_subquery()
    )
    begins = select(series.c.id, func.coalesce(first, 0).label("night")).where(series.c.id.in_(list(series_rows)))
    begin = begins.cte("begin").prefix_with("MATERIALIZED")  # once for each series, not for each of its rows
    rows = connection.execute(
        select(measure.c.series, measure.c.night, measure.c.environment, measure.c.value)
        .join_from(begin, measure, measure.c.series == begin.c.id)
        .where(measure.c.night <= night, measure.c.night >= begin.c.night)
        .order_by(measure.c.series, measure.c.night, measure.c.run)
    ).all()
    return sorted(_gather(connection, series_rows, rows), key=lambda history: history.name)


def read_one(connection: Connection, name: str) -> Series | None:
    """The whole history of a series; if two kinds have the same name, the longer one."""
    series, measure = tables.series, tables.measure
    cell, measured = parse_series_name(name)
    query = select(series).where(series.c.cell == cell, series.c.name == measured)
    series_rows = {row.id: row for row in connection.execute(query)}
    rows = connection.execute(
        select(measure.c.series, measure.c.night, measure.c.environment, measure.c.value)
        .where(measure.c.series.in_(list(series_rows)))
        .order_by(measure.c.series, measure.c.night, measure.c.run)
    ).all()
    return max(_gather(connection, series_rows, rows), key=lambda history: len(history.nights), default=None)


def read_regressions(connection: Connection, night: int) -> dict[str, Verdict]:
    """The open regressions of a night's series: their latest history verdict on the same machine is *regressed*.

    A series has a history for each machine, so a night on another machine neither ends nor continues a regression.
    """
    series, verdict, measured, now = tables.series, tables.verdict, tables.measure.alias(), tables.measure.alias()
    name = series.c.cell + "/" + series.c.name
    machine = (
        select(now.c.environment)
        .where(now.c.series == series.c.id, now.c.night == night)
        .order_by(now.c.run)
        .limit(1)
        .correlate(series)
        .scalar_subquery()
    )
    judged = exists().where(verdict.c.series == name, verdict.c.judge == "history", verdict.c.night == measured.c.night)
    latest = (
        select(measured.c.night)
        .where(measured.c.series == series.c.id, measured.c.night < night, measured.c.environment == machine, judged)
        .order_by(measured.c.night.desc())
        .limit(1)
        .correlate(series)
        .scalar_subquery()
    )
    in_night = series.c.cell.in_(select(tables.run.c.cell).distinct().where(tables.run.c.night == night))
    last = select(name.label("name"), latest.label("night")).where(in_night).cte("last").prefix_with("MATERIALIZED")
    same = (verdict.c.series == last.c.name) & (verdict.c.night == last.c.night) & (verdict.c.judge == "history")
    query = select(verdict.c.series, verdict.c.body).join_from(last, verdict, same)
    rows = connection.execute(query.where(verdict.c.status == "regressed"))
    return {row.series: read_verdict(row.series, row.body) for row in rows}


def read_latest_verdict(connection: Connection, name: str) -> Verdict | None:
    """The latest verdict on the history of a series; among several machines a regression comes first."""
    series, verdict, measure = tables.series, tables.verdict, tables.measure
    cell, measured = parse_series_name(name)
    rows = connection.execute(
        select(measure.c.environment, verdict.c.status, verdict.c.body)
        .join_from(series, measure, measure.c.series == series.c.id)
        .join(verdict, (verdict.c.night == measure.c.night) & (verdict.c.series == name))
        .where(series.c.cell == cell, series.c.name == measured, verdict.c.judge == "history")
        .order_by(measure.c.night.desc())
    ).all()
    latest = {row.environment: row for row in reversed(rows)}.values()
    first = max(latest, key=lambda row: row.status == "regressed", default=None)
    if first is None:
        return None
    return read_verdict(name, first.body)


def read_verdict(series: str, body: Any) -> Verdict:
    try:
        return Verdict.model_validate(body)
    except ValidationError as error:
        problem = f"the store's latest verdict on {series} cannot be read: {error.errors()[0]['msg']}"
        raise StoreError(f"{problem}.", "a newer nightjar-ci may have written it: gate with that one") from None


def _gather(connection: Connection, series_rows: Mapping[int, Any], rows: Sequence[Any]) -> Iterator[Series]:
    """Series from rows of series, night, environment, value; sorted by series, night and run."""
    columns = np.array([row[:3] for row in rows], dtype=np.int64).reshape(-1, 3)
    kept = find_comparable(*columns.T)
    ids, nights, environments = columns[kept].T
    values = np.array([np.nan if row[3] is None else row[3] for row in rows], dtype=np.float64)[kept]
    starts, medians = take_medians(ids, nights, values)
    extremes = {"lower": np.fmax.reduceat, "higher": np.fmin.reduceat}  # the worst run
    worst = {better: take(values, starts) for better, take in extremes.items() if len(starts)}
    names = _names(connection, tables.night.c.number, tables.night.c.id, np.unique(nights))
    keys = _names(connection, tables.environment.c.id, tables.environment.c.key, np.unique(environments))
    ids, nights, environments = ids[starts], nights[starts], environments[starts]
    counts = np.diff([*starts, len(values)])
    edges = [*np.flatnonzero(np.diff(ids, prepend=-1)), len(ids)]
    for low, high in pairwise(edges):
        series = series_rows[int(ids[low])]
        # The worst of many runs is compared with nights of as many.
        of_worst = np.where(counts[low:high] == counts[high - 1], worst[series.better][low:high], np.nan)
        several = counts[high - 1] > 1 and not np.array_equal(of_worst, medians[low:high], equal_nan=True)
        yield Series(
            name=f"{series.cell}/{series.name}",
            unit=series.unit,
            better=series.better,
            nights=tuple(names[number] for number in nights[low:high].tolist()),
            values=medians[low:high],
            environments=tuple(keys[number] for number in environments[low:high].tolist()),
            worst=of_worst if several else None,
        )


def find_comparable(series: Integers, nights: Integers, machines: Integers) -> npt.NDArray[np.bool_]:
    """A mask of the rows to keep, one machine for each night: the machine of the latest night's first run if present.

    Args:
        series: shape (N,), sorted.
        nights: shape (N,), sorted within each series.
        machines: shape (N,); the machine of each row.

    >>> find_comparable(np.array([1, 1, 1, 1]), np.array([5, 5, 6, 6]), np.array([7, 8, 8, 7])).tolist()
    [False, True, True, False]
    """
    kept = np.ones(len(series), dtype=bool)
    if not len(series):
        return kept
    starts = np.flatnonzero(np.diff(series, prepend=-1) | np.diff(nights, prepend=-1))
    edges = [*starts.tolist(), len(series)]
    ends = np.flatnonzero(np.append(series[starts][1:] != series[starts][:-1], True))  # the latest night of each series
    latest = dict(zip(series[starts[ends]].tolist(), machines[starts[ends]].tolist(), strict=True))
    mixed = np.minimum.reduceat(machines, starts) != np.maximum.reduceat(machines, starts)
    for index in np.flatnonzero(mixed):
        rows = slice(edges[index], edges[index + 1])
        machine = latest[int(series[starts[index]])]
        if machine not in machines[rows]:
            machine = machines[rows][0]
        kept[rows] = machines[rows] == machine
    return kept


def take_medians(series: Integers, nights: Integers, values: Floats) -> tuple[Integers, Floats]:
    """The median of each night of each series.

    Args:
        series: shape (N,), sorted.
        nights: shape (N,), sorted within each series.
        values: shape (N,); nan is ignored if the night has another value.

    Returns:
        For each night of each series its first row and its median; nan if the night has no finite value.

    >>> starts, medians = take_medians(np.array([1, 1, 1, 2]), np.array([5, 5, 6, 5]), np.array([1.0, 2.0, 4.0, 8.0]))
    >>> starts.tolist(), medians.tolist()
    ([0, 2, 3], [1.5, 4.0, 8.0])
    """
    starts = np.flatnonzero(np.diff(series, prepend=-1) | np.diff(nights, prepend=-1))
    group = np.repeat(np.arange(len(starts)), np.diff([*starts, len(values)]))
    ordered = values[np.lexsort((values, group))]  # nan sorts last in each group
    finite = np.bincount(group[~np.isnan(values)], minlength=len(starts))
    low, high = starts + np.maximum(finite - 1, 0) // 2, starts + finite // 2
    with np.errstate(over="ignore"):  # the median of two numbers near the largest one is infinite
        return starts, (ordered[low] + ordered[high]) / 2


def _measured_in(night: int) -> Any:
    """The condition for measures of a night, through its cells: the table of measures is sorted by series."""
    run = tables.run
    cells = select(run.c.cell).distinct().where(run.c.night == night)
    ids = select(tables.series.c.id).where(tables.series.c.cell.in_(cells))
    return (tables.measure.c.night == night) & tables.measure.c.series.in_(ids)


def _names(connection: Connection, number: Any, name: Any, numbers: Integers) -> dict[int, str]:
    """The names of numbers; queried in chunks, since a statement has a limited number of parameters."""
    names: dict[int, str] = {}
    for chunk in np.array_split(numbers, max(1, len(numbers) // 500)):
        rows: Sequence[Any] = connection.execute(select(number, name).where(number.in_(chunk.tolist()))).all()
        names |= {row[0]: row[1] for row in rows}
    return names


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
