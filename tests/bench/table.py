"""Which goals does a bench reach? In: its rows. Out: a table, a last line that sums it up, and an exit code.

A row compares one number of ours with its goal and, where there is one, with a rival measured in the same run. Every
`nox -s bench_*` session prints one such table and ends with `finish`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One goal of a bench.

    Attributes:
        name: what is measured, and on what.
        ours: our number.
        goal: what it must reach, itself included; None for a row that only informs.
        better: whether `ours` must be at most (`lower`) or at least (`higher`) the goal.
        unit: of `ours`, `goal` and `rival_value`.
        rival: name of what ours is compared with.
        rival_value: the rival's number in the same run; nan where it gave no answer.
    """

    name: str
    ours: float
    goal: float | None = None
    better: Literal["lower", "higher"] = "lower"
    unit: str = ""
    rival: str = ""
    rival_value: float | None = None

    @property
    def reached(self) -> bool:
        """Whether the goal is reached; a number that is not a number reaches none.

        >>> Row(name="time", ours=2.0, goal=2.0).reached, Row(name="time", ours=math.nan, goal=2.0).reached
        (True, False)
        """
        if self.goal is None:
            return True
        return self.ours <= self.goal if self.better == "lower" else self.ours >= self.goal

    @property
    def ratio(self) -> float | None:
        """How many times better ours is than the rival's; None without a rival, or an answer of it.

        >>> Row(name="time", ours=2.0, rival="old", rival_value=8.0).ratio
        4.0
        """
        if self.rival_value is None or math.isnan(self.rival_value):
            return None
        top, bottom = (self.rival_value, self.ours) if self.better == "lower" else (self.ours, self.rival_value)
        return top / bottom if bottom else math.inf if top else 1.0


def sum_up(bench: str, rows: Sequence[Row]) -> str:
    """The last line of a bench.

    >>> sum_up("bench_x", [Row(name="time", ours=3.0, goal=2.0), Row(name="size", ours=1.0)])
    'bench_x: 0 of 1 goals reached; missed: time'
    """
    goals = [row for row in rows if row.goal is not None]
    missed = [row.name for row in goals if not row.reached]
    line = f"{bench}: {len(goals) - len(missed)} of {len(goals)} goals reached"
    return f"{line}; missed: {', '.join(missed)}" if missed else line


def print_rows(title: str, rows: Sequence[Row]) -> None:
    """Prints a table of rows to stdout."""
    table = Table(title=title, title_justify="left")
    for name in ("", "goal", "ours", "rival", "", "ratio"):
        table.add_column(name, justify="right" if name in ("goal", "ours", "ratio") else "left")
    for row in rows:
        sign = "<=" if row.better == "lower" else ">="
        goal = "" if row.goal is None else f"{sign} {row.goal:.4g} {row.unit}".strip()
        mark = "" if row.reached else " MISSED"
        rival = "" if row.rival_value is None else f"{row.rival_value:.4g} {row.unit}".strip()
        rival = "no answer" if row.rival_value is not None and math.isnan(row.rival_value) else rival
        ratio = "" if row.ratio is None else f"{row.ratio:.3g}x"
        table.add_row(row.name, goal, f"{row.ours:.4g} {row.unit}".strip() + mark, row.rival, rival, ratio)
    Console(file=sys.stdout, width=150, soft_wrap=True).print(table)


def finish(bench: str, rows: Sequence[Row]) -> int:
    """Prints the last line and returns the exit code: 1 where a goal was missed or none was measured."""
    print(sum_up(bench, rows), flush=True)
    goals = [row for row in rows if row.goal is not None]
    return 0 if goals and all(row.reached for row in goals) else 1
