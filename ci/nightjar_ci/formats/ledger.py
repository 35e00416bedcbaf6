"""The ledger of a night: each due series, whether it was measured and judged, and the smallest detectable change.

In: the gate's counts. Out: `ledger.json` (docs/reference/verdicts.md).
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from nightjar_ci.formats.documents import StrictModel, read_document
from nightjar_ci.formats.series_name import parse_series_name
from nightjar_ci.formats.verdict import Judge

Measured = Literal["yes", "missing", "not_finite", "unit_changed", "zero", "not_run"]


class Due(StrictModel):
    """A series that is due in this night.

    Attributes:
        series: `<cell>/<name>`.
        kind: `curve`, `sample`, `profile`, or `facts` for a compiled program.
        unit: the expected unit; empty for a compiled program, or where only a policy names the series.
        had: number of the `of` recent nights that had it.
        since: the first night without it, if that is an earlier night.
        measured: whether this night has it; `not_run` if no job of its cell completed.
        not_judged: why no judge did, or its fault in this night.
        renamed_to: a similar new series that may be the same one under another name.
        smallest_change: smallest change that its judges could detect in this night, relative: 0.03 is 3 %.
        how: the judge that gives this number.
    """

    series: str
    kind: str
    unit: str
    better: str
    had: int
    of: int
    named_by: tuple[Literal["baseline", "policy"], ...] = ()
    since: str | None = None
    measured: Measured
    judges: tuple[Judge, ...] = ()
    not_judged: str | None = None
    renamed_to: str | None = None
    smallest_change: float | None = None
    how: str | None = None

    @property
    def cell(self) -> str:
        return parse_series_name(self.series).cell

    @property
    def name(self) -> str:
        return parse_series_name(self.series).measure


class Ledger(StrictModel):
    """All series that are due in a night, by name."""

    night: str
    due: tuple[Due, ...]


def read_ledger(path: Path) -> Ledger:
    return read_document(path, Ledger)
