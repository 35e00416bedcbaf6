"""The ledger of a night: each series that is due, whether it was measured and judged, and what could have been seen.

In: what the gate counted. Out: the frozen `nightjar.ledger/1` document (docs/reference/verdicts.md).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from nightjar_ci.formats.documents import read_document, write_json
from nightjar_ci.formats.verdict import Judge

LEDGER_SCHEMA = "nightjar.ledger/1"

Measured = Literal["yes", "missing", "not_finite", "unit_changed", "zero", "not_run"]


class _Strict(BaseModel):
    """Frozen; unknown keys are errors; non-finite numbers travel as strings."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings", populate_by_name=True)


class Due(_Strict):
    """A series that is due tonight.

    Attributes:
        series: `<cell>/<name>`.
        kind: `curve`, `sample`, `profile`, or `facts` for a compiled program.
        unit: in which it is due; empty for a compiled program, or where only a policy names it.
        had: how many of the `of` recent nights had it.
        named_by: what else names it.
        since: the first night without it, where an earlier night was judged to lack it.
        measured: whether tonight has it; `not_run` where no job of its cell completed, which the night says by itself.
        judges: who judged it.
        not_judged: why nobody did, or what is wrong with it tonight.
        renamed_to: the new series that it may be, where there is one like it.
        smallest_change: what its judges could have found tonight; a relative change, 0.03 is 3 %.
        how: which judge's number that is.
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
        """The cell that the series belongs to."""
        return self.series.partition("/")[0]

    @property
    def name(self) -> str:
        """The series without its cell."""
        return self.series.partition("/")[2]


class Ledger(_Strict):
    """All series that are due in a night, by name: `nightjar.ledger/1`."""

    schema_: Annotated[Literal["nightjar.ledger/1"], Field(alias="schema")] = "nightjar.ledger/1"
    night: str
    due: tuple[Due, ...]


def read_ledger(path: Path) -> Ledger:
    """Reads a `ledger.json`.

    Raises:
        InputError: the file is missing, truncated, of a foreign or newer schema, or has a wrong key or type.
    """
    return read_document(path, Ledger, LEDGER_SCHEMA)


def write_ledger(path: Path, ledger: Ledger) -> None:
    """Writes `ledger.json`, whole or not at all."""
    write_json(path, ledger)
