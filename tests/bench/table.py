"""The goals of a bench: its rows become a table, a last line that sums them up, and an exit code.

A row compares one number of ours with its goal and, where there is one, with a rival measured in the same run. Every
`nox -s bench_*` session prints such tables and ends with `finish`.

A bench is cut into parts, and a part states the names of its goals before it measures (`list_goals`). A goal without a
number is shown as not measured, with the reason, and counts: no data, no browser or no rival makes no goal vanish.
"""

import math
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Literal

from rich.console import Console
from rich.table import Table


class NotMeasuredError(Exception):
    """A part of a bench that cannot be measured on this machine, and why."""


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    ours: float = math.nan
    goal: float | None = None
    better: Literal["lower", "higher"] = "lower"
    unit: str = ""
    rival: str = ""
    rival_value: float | None = None
    lack: str = ""

    @property
    def is_goal(self) -> bool:
        return self.goal is not None or bool(self.lack)

    @property
    def reached(self) -> bool:
        """Whether the goal is reached; a number that is not a number reaches none.

        >>> Row("time", 2.0, goal=2.0).reached, Row("time", math.nan, goal=2.0).reached
        (True, False)
        """
        if self.lack:
            return False
        if self.goal is None:
            return True
        return self.ours <= self.goal if self.better == "lower" else self.ours >= self.goal

    @property
    def ratio(self) -> float | None:
        """How many times better ours is than the rival's; None without a rival, or an answer of it.

        >>> Row("time", 2.0, rival="old", rival_value=8.0).ratio
        4.0
        """
        if self.rival_value is None or math.isnan(self.rival_value):
            return None
        top, bottom = (self.rival_value, self.ours) if self.better == "lower" else (self.ours, self.rival_value)
        return top / bottom if bottom else math.inf if top else 1.0


def sum_up(bench: str, rows: Sequence[Row]) -> str:
    """The last line of a bench.

    >>> rows = [Row("time", 3.0, goal=2.0), Row("size", 1.0), Row("p", lack="no x")]
    >>> sum_up("bench_x", rows)
    'bench_x: 0 of 2 goals met, 1 missed, 1 not measured; missed: time; not measured: p'
    """
    goals = [row for row in rows if row.is_goal]
    missed = [row.name for row in goals if not row.reached and not row.lack]
    unmeasured = [row.name for row in goals if row.lack]
    met = len(goals) - len(missed) - len(unmeasured)
    line = f"{bench}: {met} of {len(goals)} goals met, {len(missed)} missed, {len(unmeasured)} not measured"
    for what, names in (("missed", missed), ("not measured", unmeasured)):
        if names:
            line += f"; {what}: {', '.join(names)}"
    return line


def names(goal: str, row: str) -> bool:
    """Whether the name of a row is that of a goal; what was only known afterwards may follow.

    It follows in brackets, or after a goal that ends with a space.

    >>> names("power", "power [80, 90]"), names("jax -> ", "jax -> 0.12"), names("power", "power of asv")
    (True, True, False)
    """
    return row == goal or row.startswith((f"{goal} [", f"{goal} (")) or (goal.endswith(" ") and row.startswith(goal))


def measure_part(goals: Sequence[str], measure: Callable[[], list[Row]]) -> list[Row]:
    try:
        rows, why = measure(), "the part measured other rows"
    except NotMeasuredError as error:
        rows, why = [], str(error)
    for row in rows:
        if row.is_goal and not any(names(goal, row.name) for goal in goals):
            raise ValueError(f"the goal {row.name!r} is not among those that its part states: expected one of {goals}")
    measured = [row.name for row in rows if row.is_goal]
    left = [goal for goal in dict.fromkeys(goals) if not any(names(goal, name) for name in measured)]
    return rows + [Row(goal, lack=why) for goal in left]


def run_parts(bench: str, parts: Sequence[str], *arguments: object) -> list[Row]:
    """Measures parts of a bench, each a module with `list_goals` and `measure`, and prints a table of each."""
    rows: list[Row] = []
    for part in parts:
        print(f"measuring: {part}", file=sys.stderr, flush=True)
        module = import_module(f"tests.bench.{bench}.{part}")
        measured = measure_part(module.list_goals(*arguments), lambda module=module: module.measure(*arguments))  # type: ignore[misc]
        print_rows(part, measured)
        rows += measured
    return rows


def make_parser(bench: str, parts: Sequence[str], about: str | None) -> ArgumentParser:
    session = f"bench_{bench}"
    parser = ArgumentParser(prog=f"nox -s {session} --", description=about)
    parser.add_argument("--only", choices=parts, action="append", help="run this part; may be given several times")
    return parser


def run_bench(bench: str, parts: Sequence[str], about: str | None, quick: str = "") -> int:
    """Runs the parts of a bench that the command line names, with whether it is quick if there is such a way."""
    parser = make_parser(bench, parts, about)
    if quick:
        parser.add_argument("--quick", action="store_true", help=quick)
    given = parser.parse_args()
    return finish(f"bench_{bench}", run_parts(bench, given.only or parts, *([given.quick] if quick else [])))


def print_rows(title: str, rows: Sequence[Row]) -> None:
    table = Table(title=title, title_justify="left")
    for name in ("", "goal", "ours", "rival", "", "ratio"):
        table.add_column(name, justify="right" if name in ("goal", "ours", "ratio") else "left")
    for row in rows:
        sign = "<=" if row.better == "lower" else ">="
        goal = "" if row.goal is None else f"{sign} {row.goal:.4g} {row.unit}".strip()
        ours = f"{row.ours:.4g} {row.unit}".strip() + ("" if row.reached else " MISSED")
        if row.lack:
            ours = f"not measured: {row.lack}"
        rival = "" if row.rival_value is None else f"{row.rival_value:.4g} {row.unit}".strip()
        rival = "no answer" if row.rival_value is not None and math.isnan(row.rival_value) else rival
        ratio = "" if row.ratio is None else f"{row.ratio:.3g}x"
        table.add_row(row.name, goal, ours, row.rival, rival, ratio)
    Console(file=sys.stdout, width=150, soft_wrap=True).print(table)


def print_tables(goals: Mapping[str, Sequence[str]], tables: Sequence[tuple[str, list[Row]]]) -> list[Row]:
    """Prints tables with a row for each of their goals, and those of tables that are not there; returns all rows."""
    rows: list[Row] = []
    measured = dict(tables)
    for title in dict.fromkeys([*measured, *goals]):
        table = measure_part(goals.get(title, ()), lambda title=title: measured.get(title, []))  # type: ignore[misc]
        print_rows(title, table)
        rows += table
    return rows


def finish(bench: str, rows: Sequence[Row]) -> int:
    """Prints the last line and returns the exit code.

    1 where a goal was missed, or there is none; else 4 where one was not measured.
    """
    print(sum_up(bench, rows), flush=True)
    goals = [row for row in rows if row.is_goal]
    if not goals or not all(row.reached or row.lack for row in goals):
        return 1
    return 4 if any(row.lack for row in goals) else 0
