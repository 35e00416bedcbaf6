"""The page of a comparison: a `Diff` in, one self-contained HTML text out.

The page has no script and loads nothing. A bar to the right is a slowdown, a bar to the left a speedup; a pale bar may
be due to chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

from nightjar_profiling.analyses.compare.diff import Change, Diff
from nightjar_profiling.report.render import load_template

MOST_ROWS = 100
SCALES = (("s", 1e9), ("ms", 1e6), ("µs", 1e3), ("ns", 1.0))


def render_difference(diff: Diff, before: str, after: str) -> str:
    """The HTML text of the page.

    Args:
        diff: the changes.
        before: name of the earlier capture.
        after: name of the later capture.
    """
    tables = (("Lines", diff.lines), ("Instructions", diff.instructions), ("Programs", diff.programs))
    return load_template("diff.html.j2").render(
        before=before,
        after=after,
        total=row_data(diff.total, _largest([diff.total]), _scale([diff.total])),
        executions=diff.executions,
        estimates=describe_estimates(*diff.estimates),
        warnings=diff.warnings,
        tables=[table_data(title, changes) for title, changes in tables],
    )


def describe_estimates(before: bool, after: bool) -> str:
    """A sentence on the sides that never ran; empty if both ran.

    >>> describe_estimates(False, True), describe_estimates(True, True)
    ('After is an estimate, nothing ran. ', 'Both are estimates, nothing ran. ')
    """
    if before and after:
        return "Both are estimates, nothing ran. "
    if before:
        return "Before is an estimate, nothing ran. "
    return "After is an estimate, nothing ran. " if after else ""


def table_data(title: str, changes: Sequence[Change]) -> dict[str, Any]:
    """A table of changes, largest difference first, with the number of rows that it omits."""
    changed = [change for change in changes if change.delta_ns]
    shown = changed[:MOST_ROWS]
    largest, scale = _largest(shown), _scale(shown)
    rows = [row_data(change, largest, scale) for change in shown]
    return {"title": title, "unit": scale[0], "rows": rows, "left": len(changed) - len(shown)}


def row_data(change: Change, largest_ns: float, scale: tuple[str, float]) -> dict[str, Any]:
    """The texts of a row, its times in one unit; its bar in percent of half the column."""
    low, high = (show(ns, scale, sign=True) for ns in (change.low_ns, change.high_ns))
    return {
        "name": change.name if change.function is None else PurePath(change.name).name,
        "title": change.name,
        "text": change.source or change.function or "",
        "before": show(change.before_ns, scale),
        "after": show(change.after_ns, scale),
        "delta": show(change.delta_ns, scale, sign=True),
        "unit": scale[0],
        "percent": show_percent(change),
        "interval": f"{low} to {high}" if low and high else "unknown",
        "certain": change.certain,
        "slower": change.delta_ns > 0,
        "width": round(100 * abs(change.delta_ns) / largest_ns, 2) if largest_ns else 0.0,
    }


def show_percent(change: Change) -> str:
    """The relative change; a word if there is no time before or after."""
    if change.before_ns is None:
        return "appeared"
    if change.after_ns is None:
        return "vanished"
    return "new" if change.fraction is None else f"{100 * change.fraction:+.1f} %"


def show(ns: float | None, scale: tuple[str, float], *, sign: bool = False) -> str:
    """A time in a unit; empty for None.

    >>> show(1_234_567.0, ("ms", 1e6)), show(-890.0, ("µs", 1e3), sign=True), show(None, ("ns", 1.0))
    ('1.235', '-0.890', '')
    """
    if ns is None:
        return ""
    return f"{ns / scale[1]:+.3f}" if sign else f"{ns / scale[1]:.3f}"


def _scale(changes: Sequence[Change]) -> tuple[str, float]:
    """One unit for a table, so that its numbers are comparable at a glance."""
    largest = max((max(change.before_ns or 0.0, change.after_ns or 0.0) for change in changes), default=0.0)
    return next((scale for scale in SCALES if largest >= scale[1]), SCALES[-1])


def _largest(changes: Sequence[Change]) -> float:
    return max((abs(change.delta_ns) for change in changes), default=0.0)
