"""The page of a row of the calendar: the history of each of its series, and two nights compared.

In: the row, its series, and the addresses of reports. Out: one HTML document that loads nothing from elsewhere and
works from a file. The numbers are in it once, as JSON; charts and comparison are drawn when they are opened. Filter,
opened series and compared nights are in the address, so a view can be sent to somebody.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from nightjar_ci.causes.status import ANSWER_TEXT, Row
from nightjar_ci.formats.series import Series
from nightjar_ci.formats.verdict import STATUS_TEXT, Status
from nightjar_ci.report.figures import readable
from nightjar_ci.report.history import Level, find_all_levels, spark_points
from nightjar_ci.report.html import make_templates
from nightjar_ci.untrusted.terminal import show_controls

_DIGITS = 6
_WORST_FIRST: tuple[Status, ...] = ("regressed", "cannot_tell", "improved", "ok")


def render_histories(row: Row, histories: Sequence[Series], reports: Mapping[str, str]) -> str:
    """The page of a row.

    Args:
        reports: night id to the address of its report, from the folder of the status page.
    """
    return (
        make_templates("nightjar_ci.site")
        .get_template("histories.html.j2")
        .render(
            row=row,
            count=len(histories),
            answer_text=ANSWER_TEXT,
            status_text=STATUS_TEXT,
            data=make_data(row, histories, reports),
        )
    )


def make_data(row: Row, histories: Sequence[Series], reports: Mapping[str, str]) -> dict[str, Any]:
    """The numbers of the page.

    `nights`: id, start, answer, report and packages of each night, the packages as differences from the night before.
    `series`: values at the positions `at` of the nights, in `unit`; `levels` as first and last position and median;
    `machines` if a series has several.
    """
    known = {night.id: (night, answer) for night, answer in row.nights}
    ids = _find_order(row, histories)
    position = {name: index for index, name in enumerate(ids)}
    statuses = _worst_by_series(row)
    ordered = sorted(histories, key=lambda one: one.name)
    return {
        "nights": _describe_nights(ids, known, reports),
        "series": [
            _describe_series(history, levels, position, statuses.get(history.name, ""))
            for history, levels in zip(ordered, find_all_levels(ordered), strict=True)
        ],
    }


def _find_order(row: Row, histories: Sequence[Series]) -> list[str]:
    """The ids of all nights, oldest first; one that only a history has comes before the next that the row has too."""
    in_row = {night.id: night.started_at for night, _ in row.nights}
    started = dict(in_row)
    for history in histories:
        later = "9999"
        for name in reversed(history.nights):
            later = in_row.get(name, later)
            started.setdefault(name, later)
    return sorted(started, key=lambda name: (started[name], name in in_row, name))


def _describe_nights(ids: Sequence[str], known: Mapping[str, Any], reports: Mapping[str, str]) -> list[dict[str, Any]]:
    packages: Mapping[str, str] = {}
    nights = []
    for name in ids:
        entry: dict[str, Any] = {"id": name}
        if name in known:
            night, answer = known[name]
            installed = night.packages or packages  # not known if the first job failed
            changed = {one: version for one, version in installed.items() if packages.get(one) != version}
            gone = dict.fromkeys(one for one in packages if one not in installed)
            entry |= {
                "started": night.started_at,
                "answer": answer,
                "packages": {**changed, **gone},
                "commit": night.git_sha or "",
            }
            packages = installed
        if name in reports:
            entry["report"] = f"../{reports[name]}"
        nights.append(entry)
    return nights


def _describe_series(
    history: Series, levels: Sequence[Level], position: Mapping[str, int], status: str
) -> dict[str, Any]:
    finite = history.values[[math.isfinite(value) for value in history.values]]
    factor, unit = readable(finite, history.unit)
    machines = list(dict.fromkeys(history.environments))
    entry: dict[str, Any] = {
        "name": show_controls(history.name),
        "unit": unit,
        "better": history.better,
        "status": status,
        "spark": spark_points(history),
        "at": [position[name] for name in history.nights],
        "values": [_shorten(factor * value) for value in history.values.tolist()],
        "levels": [
            [
                position[history.nights[level.first]],
                position[history.nights[level.end - 1]],
                _shorten(factor * level.median),
            ]
            for level in levels
        ],
    }
    if len(machines) > 1:
        entry["machines"] = [show_controls(name) for name in machines]
        entry["machine"] = [machines.index(name) for name in history.environments]
    return entry


def _shorten(value: float) -> float | None:
    if not math.isfinite(value):
        return None
    return float(f"{value:.{_DIGITS}g}")


def _worst_by_series(row: Row) -> dict[str, str]:
    """The worst status of each series in the latest night, over its judges."""
    statuses: dict[str, list[Status]] = {}
    for (name, _), status in row.latest.statuses.items():
        statuses.setdefault(name, []).append(status)
    return {name: min(found, key=_WORST_FIRST.index) for name, found in statuses.items()}
