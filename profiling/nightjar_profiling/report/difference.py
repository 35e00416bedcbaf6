"""The page of changes between two captures.

In: a `Diff`. Out: one self-contained HTML text, without scripts or network access. A bar to the right is time lost, a
bar to the left is time saved, and a pale bar is not certain.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

from nightjar_profiling.analyses.compare.change import Change
from nightjar_profiling.analyses.compare.diff import Diff
from nightjar_profiling.report.render import load_template

MOST_ROWS = 100
SCALES = (("s", 1e9), ("ms", 1e6), ("µs", 1e3), ("ns", 1.0))


def render_difference(difference: Diff, before: str, after: str) -> str:
    """The page."""
    tables = (("Lines", difference.lines), ("Instructions", difference.instructions), ("Programs", difference.programs))
    return load_template("diff.html.j2").render(
        before=before,
        after=after,
        total=row_data(difference.total, _largest([difference.total]), _scale([difference.total])),
        executions=difference.executions,
        captures=difference.captures,
        estimates=describe_estimates(*difference.estimates),
        warnings=difference.warnings,
        tables=[table_data(title, changes) for title, changes in tables],
    )


def describe_estimates(before: bool, after: bool) -> str:
    """A sentence on the sides that never ran; empty if both did.

    >>> describe_estimates(False, True), describe_estimates(True, True)
    ('After is an estimate, nothing ran. ', 'Both are estimates, nothing ran. ')
    """
    if before and after:
        return "Both are estimates, nothing ran. "
    if not (before or after):
        return ""
    return f"{'Before' if before else 'After'} is an estimate, nothing ran. "


def table_data(title: str, changes: Sequence[Change]) -> dict[str, Any]:
    """A table of changes, largest difference first, and the number of rows left out."""
    changed = [change for change in changes if change.delta_ns]
    shown = changed[:MOST_ROWS]
    largest, scale = _largest(shown), _scale(shown)
    rows = [row_data(change, largest, scale) for change in shown]
    return {"title": title, "unit": scale[0], "rows": rows, "left": len(changed) - len(shown)}


def row_data(change: Change, largest_ns: float, scale: tuple[str, float]) -> dict[str, Any]:
    """The text of a row, its times in one unit; its bar in percent of half the column."""
    if change.function is not None:
        shown_name = PurePath(change.name).name
    else:
        shown_name = change.name
    if change.before_ns is None or change.after_ns is None:
        percent = "appeared" if change.before_ns is None else "vanished"
    else:
        percent = "new"
        if change.fraction is not None:
            percent = f"{100 * change.fraction:+.1f} %"
    low, high = (show(ns, scale, sign=True) for ns in (change.low_ns, change.high_ns))
    return {
        "name": shown_name,
        "title": change.name,
        "text": change.source or change.function or "",
        "before": show(change.before_ns, scale),
        "after": show(change.after_ns, scale),
        "delta": show(change.delta_ns, scale, sign=True),
        "unit": scale[0],
        "percent": percent,
        "interval": f"{low} to {high}" if low and high else "not known",
        "certain": change.certain,
        "slower": change.delta_ns > 0,
        "width": round(100 * abs(change.delta_ns) / largest_ns, 2) if largest_ns else 0.0,
    }


def show(ns: float | None, scale: tuple[str, float], *, sign: bool = False) -> str:
    """A time in a unit; nothing for None.

    >>> show(1_234_567.0, ("ms", 1e6)), show(-890.0, ("µs", 1e3), sign=True), show(None, ("ns", 1.0))
    ('1.235', '-0.890', '')
    """
    if ns is None:
        return ""
    return f"{ns / scale[1]:{'+' if sign else ''}.3f}"


def _scale(changes: Sequence[Change]) -> tuple[str, float]:
    """One unit for a table, so that its numbers can be compared by their length."""
    largest = max((max(change.before_ns or 0.0, change.after_ns or 0.0) for change in changes), default=0.0)
    return next((scale for scale in SCALES if largest >= scale[1]), SCALES[-1])


def _largest(changes: Sequence[Change]) -> float:
    return max((abs(change.delta_ns) for change in changes), default=0.0)
