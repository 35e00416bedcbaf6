"""Verdicts on the series of a night, and the exit code of the night.

In: a judge's decision. Out: a frozen `Verdict` with its numbers and evidence, the `nightjar.verdicts/1` document, and
the exit code of a night.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, JsonValue

from nightjar_ci.errors import ExitCode
from nightjar_ci.formats.documents import StrictModel, read_document
from nightjar_ci.formats.series_name import parse_series_name
from nightjar_ci.formats.suite import SUITE

VERDICTS_SCHEMA = "nightjar.verdicts/1"

Status = Literal["ok", "regressed", "improved", "cannot_tell"]
Judge = Literal["convergence", "performance", "history", "facts", "presence", "tests"]

WORST_FIRST: tuple[Status, ...] = ("regressed", "cannot_tell", "improved", "ok")
STATUS_TEXT: dict[Status, str] = {
    "regressed": "regressed",
    "cannot_tell": "cannot tell",
    "improved": "improved",
    "ok": "ok",
}


class Effect(StrictModel):
    """The relative change of a series (+0.031 is 3.1 % more), and the quantity that changed."""

    value: float
    unit: str


class Verdict(StrictModel):
    """One judge's decision about one series.

    Attributes:
        series: `<cell>/<name>`, such as `gpt_tiny-train-cpu-f32-dp1/loss`.
        effect: the change that decided, or None if there is nothing to compare.
        interval: low and high end of the effect, if the judge has one.
        p: probability of a difference at least this large if nothing had changed, if the judge has one.
        p_adjusted: p corrected for all the night's series: the smallest false discovery rate at which it is
            significant.
        n: number of runs (pairs of runs, nights) behind the decision.
        policy: the thresholds used.
        runs: ids of the jobs whose results were used.
        explanation: the decision in one sentence.
        details: evidence, one line each.
        watch: unusual, but within what chance produces across all series of the night; ok, but worth watching.
    """

    series: str
    judge: Judge
    status: Status
    effect: Effect | None = None
    interval: tuple[float, float] | None = None
    p: float | None = None
    p_adjusted: float | None = None
    n: int
    policy: dict[str, JsonValue]
    runs: tuple[str, ...]
    explanation: str
    details: tuple[str, ...] = ()
    watch: bool = False

    @property
    def document(self) -> dict[str, JsonValue]:
        """As in `verdicts.json`: an infinite tolerance is a string, since JSON has no such number."""
        document: dict[str, JsonValue] = json.loads(self.model_dump_json())
        return document

    @property
    def cell(self) -> str:
        return parse_series_name(self.series).cell

    @property
    def measure(self) -> str:
        return parse_series_name(self.series).measure


def status_of(verdict: Verdict) -> str:
    text = STATUS_TEXT[verdict.status]
    return f"{text}, watch" if verdict.watch else text


class NightVerdicts(StrictModel):
    """All verdicts of a night, worst first: `nightjar.verdicts/1`.

    Attributes:
        notes: series that were not judged, and why, one line each.
    """

    schema_: Annotated[Literal["nightjar.verdicts/1"], Field(alias="schema")] = "nightjar.verdicts/1"
    night: str
    verdicts: tuple[Verdict, ...]
    notes: tuple[str, ...] = ()


def sort_worst_first(verdicts: Iterable[Verdict]) -> tuple[Verdict, ...]:
    """Regressions first, then cannot tell, improvements, watch, the rest; larger effects first, then by name."""

    def rank(verdict: Verdict) -> tuple[int, bool, float, str]:
        size = 0.0
        if verdict.effect is not None:
            size = abs(verdict.effect.value)
        if math.isnan(size):
            size = math.inf
        return WORST_FIRST.index(verdict.status), not verdict.watch, -size, verdict.series

    return tuple(sorted(verdicts, key=rank))


def decide_exit_code(verdicts: Iterable[Verdict], states: Iterable[str], not_run: int = 0) -> ExitCode:
    """The exit code of a night (docs/reference/night-folder.md).

    Args:
        verdicts: of all judges.
        states: outcome state of every job.
        not_run: number of planned jobs without an outcome.

    Returns: 3 a job did not complete; 1 a series regressed; 4 a judge cannot tell, or jobs have not run; 0 otherwise.

    >>> decide_exit_code([], ["completed", "timeout"])
    <ExitCode.FAILED: 3>
    >>> decide_exit_code([], ["completed"]), decide_exit_code([], ["completed"], not_run=2)
    (<ExitCode.OK: 0>, <ExitCode.CANNOT_TELL: 4>)
    """
    statuses = {verdict.status for verdict in verdicts}
    if any(state != "completed" for state in states):
        return ExitCode.FAILED
    if "regressed" in statuses:
        return ExitCode.NO
    if "cannot_tell" in statuses or not_run:
        return ExitCode.CANNOT_TELL
    return ExitCode.OK


def describe_exit(exit_code: int, verdicts: Sequence[Verdict], checked: int = 0, not_run: int = 0, cut: int = 0) -> str:
    """The exit code of a night in words.

    Args:
        exit_code: of the night.
        verdicts: of all judges.
        checked: number of values that its jobs checked themselves.
        not_run: number of planned jobs without an outcome.
        cut: number of tests that had no time to run.

    >>> describe_exit(3, [])
    'a job did not complete'
    """
    red = [verdict for verdict in verdicts if verdict.status == "regressed"]
    regressed = _describe_regressed(red)
    if exit_code == ExitCode.FAILED:
        if red:
            return f"a job did not complete, and {regressed}"
        return "a job did not complete"
    if exit_code == ExitCode.CANNOT_TELL:
        return f"no regression found, but {_describe_doubt(verdicts, not_run)}"
    if red:
        if cut:
            return f"{regressed}, and {describe_cut(cut)}"
        return regressed
    if verdicts:
        if cut:
            return f"all is well in what ran, and {describe_cut(cut)}"
        return "all is well"
    if checked:
        return f"all jobs completed and checked {checked} numbers"
    return "all jobs completed, nothing was judged"


def describe_cut(number: int) -> str:
    """The note that tests had no time to run.

    >>> describe_cut(1017)
    '1,017 tests were not run within the time limit'
    """
    return f"{number:,} {'test was' if number == 1 else 'tests were'} not run within the time limit"


def _describe_regressed(red: Sequence[Verdict]) -> str:
    of_tests = [verdict.measure for verdict in red if verdict.judge == "tests"]
    tests = len(of_tests) - of_tests.count(SUITE)
    failing = f"{tests} tests fail"
    if tests == 1:
        failing = "1 test fails"
    if SUITE in of_tests:  # red if its failing tests are too many for a verdict each
        failing = f"more than {failing}"
    if len(of_tests) == len(red):
        return failing
    series = f"{len(red) - len(of_tests)} series regressed"
    return f"{series} and {failing}" if tests else series


def _describe_doubt(verdicts: Sequence[Verdict], not_run: int) -> str:
    if not_run:
        return describe_not_run(not_run)
    absent = sum(verdict.judge == "presence" for verdict in verdicts)
    if absent == 0:
        return "at least one judge cannot tell"
    if absent == 1:
        return "one due series is absent or unusable"
    return f"{absent} due series are absent or unusable"


def describe_not_run(number: int) -> str:
    """The note that planned jobs have no outcome.

    >>> describe_not_run(3), describe_not_run(12)
    ('three jobs have not run', '12 jobs have not run')
    """
    if number == 1:
        return "one job has not run"
    words = dict(enumerate(("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")))
    return f"{words.get(number, number)} jobs have not run"


def read_verdicts(path: Path) -> NightVerdicts:
    return read_document(path, NightVerdicts, VERDICTS_SCHEMA)
