"""The support matrix: for each cell the newest JAX with which it works, and why not with a newer one.

In: the latest outcome of every cell with every version of JAX. Out: a row per cell, and the page as Markdown. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from packaging.version import Version

from nightjar_ci.report.markdown import escape
from nightjar_ci.store.support import Tried

_MOST_CHARACTERS = 200
_MARKS = {True: "yes", False: "**no**", None: ""}  # not every font has coloured signs


@dataclass(frozen=True, slots=True, kw_only=True)
class SupportRow:
    """The known results of a cell.

    Attributes:
        works: version of JAX to whether the cell works with it, oldest first.
        newest: the newest version with which it works; None if there is none.
        breaks: the oldest version after that with which it fails; None if it works with the newest.
        why: the failure: the first failing test, or the message of the job.
    """

    cell: str
    works: dict[str, bool]
    newest: str | None
    breaks: str | None
    since: str | None
    why: str | None


def make_rows(tried: Sequence[Tried]) -> list[SupportRow]:
    cells: dict[str, dict[str, Tried]] = defaultdict(dict)
    for attempt in tried:
        cells[attempt.cell][attempt.jax] = attempt
    return [_make_row(cell, cells[cell]) for cell in sorted(cells)]


def render_support(rows: Sequence[SupportRow], written_at: str) -> str:
    versions = sorted({version for row in rows for version in row.works}, key=Version)
    lines = [
        "# What works with which JAX",
        "",
        f"Written {written_at}; each mark is the latest night that tried it.",
        "",
    ]
    lines.append("| " + " | ".join(["", "newest that works", *versions, "why not newer"]) + " |")
    lines.append("|---" * (len(versions) + 3) + "|")
    for row in rows:
        marks = [_MARKS[row.works.get(version)] for version in versions]
        why = ""
        if row.breaks is not None:
            why = f"JAX {row.breaks}, night {row.since}: {escape(row.why or 'no message')}"
        lines.append("| " + " | ".join([escape(row.cell), row.newest or "none", *marks, why]) + " |")
    return "\n".join(lines) + "\n"


def _make_row(cell: str, attempts: dict[str, Tried]) -> SupportRow:
    versions = sorted(attempts, key=Version)
    working = [version for version in versions if attempts[version].works]
    newest = working[-1] if working else None
    later = [version for version in versions if newest is None or Version(version) > Version(newest)]
    works = {version: attempts[version].works for version in versions}
    if not later:
        return SupportRow(cell=cell, works=works, newest=newest, breaks=None, since=None, why=None)
    first = attempts[later[0]]
    return SupportRow(cell=cell, works=works, newest=newest, breaks=first.jax, since=first.night, why=_explain(first))


def _explain(attempt: Tried) -> str:
    if attempt.suite is not None:
        failing = [case for case in attempt.suite.cases if case.state == "failed" and case.known is None]
        if failing:
            more = f" (and {len(failing) - 1} more)" if len(failing) > 1 else ""
            return _shorten(f"{failing[0].name}: {failing[0].message}{more}")
    first = (attempt.outcome.message or attempt.outcome.state).strip().partition("\n")[0]
    return _shorten(first.partition(" The last lines of ")[0].removeprefix(f"{attempt.outcome.job}: "))


def _shorten(text: str) -> str:
    if len(text) <= _MOST_CHARACTERS:
        return text
    return text[: _MOST_CHARACTERS - 3] + "..."
