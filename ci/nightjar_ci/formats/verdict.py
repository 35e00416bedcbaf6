"""Verdicts on the series of a night, and the exit code of the night.

In: what a judge decided. Out: a frozen `Verdict` with the numbers and the evidence behind it, the `nightjar.verdicts/1`
document, and the exit code of a night.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from nightjar_ci.formats.documents import read_document, write_json

VERDICTS_SCHEMA = "nightjar.verdicts/1"

Status = Literal["ok", "regressed", "improved", "cannot_tell"]
Judge = Literal["convergence", "performance", "history", "facts", "presence"]

WORST_FIRST: tuple[Status, ...] = ("regressed", "cannot_tell", "improved", "ok")
STATUS_TEXT: dict[Status, str] = {
    "regressed": "regressed",
    "cannot_tell": "cannot tell",
    "improved": "improved",
    "ok": "ok",
}


class _Strict(BaseModel):
    """Frozen; unknown keys are errors; non-finite numbers travel as strings."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class Effect(_Strict):
    """How much a series differs: a relative change (+0.031 is 3.1 % more), and what of."""

    value: float
    unit: str


class Verdict(_Strict):
    """One judge's decision about one series.

    Attributes:
        series: `<cell>/<name>`, such as `gpt_tiny-train-cpu-f32-dp1/loss`.
        effect: the change that decided, or None where there is nothing to compare.
        interval: low and high end of the effect, where the judge has one.
        p: probability of a difference at least this large if nothing had changed, where the judge has one.
        p_adjusted: p for all series of the night together: the smallest false discovery rate at which it would count.
        n: how many runs (pairs of runs, nights) the decision rests on.
        policy: the numbers by which it was decided.
        runs: ids of the jobs whose results were used.
        explanation: one sentence that says what was found.
        details: evidence, one line each.
        watch: it is suspicious and chance explains it among all series of the night: ok, and worth an eye.
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
    def cell(self) -> str:
        """The cell that the series belongs to."""
        return self.series.partition("/")[0]


def status_of(verdict: Verdict) -> str:
    """The status for people; `ok, watch` where it is suspicious."""
    return STATUS_TEXT[verdict.status] + (", watch" if verdict.watch else "")


class NightVerdicts(_Strict):
    """All verdicts of a night, worst first: `nightjar.verdicts/1`.

    Attributes:
        notes: what was not judged, and why, one line each.
    """

    schema_: Annotated[Literal["nightjar.verdicts/1"], Field(alias="schema")] = "nightjar.verdicts/1"
    night: str
    verdicts: tuple[Verdict, ...]
    notes: tuple[str, ...] = ()

    model_config = ConfigDict(populate_by_name=True)


def sort_worst_first(verdicts: Iterable[Verdict]) -> tuple[Verdict, ...]:
    """Regressions first, then doubts, improvements, what to watch, the rest; the larger effect first, then by name."""

    def rank(verdict: Verdict) -> tuple[int, bool, float, str]:
        size = abs(verdict.effect.value) if verdict.effect is not None else 0.0
        return (
            WORST_FIRST.index(verdict.status),
            not verdict.watch,
            -size if size == size else float("-inf"),
            verdict.series,
        )

    return tuple(sorted(verdicts, key=rank))


def decide_exit_code(verdicts: Iterable[Verdict], states: Iterable[str], not_run: int = 0) -> int:
    """The exit code of a night (docs/reference/night-folder.md), so that a doubt is never shown as a yes or a no.

    Args:
        verdicts: what the judges said.
        states: the outcome's state of every job.
        not_run: how many planned jobs have no outcome.

    Returns: 3 a job did not complete; 1 a series regressed; 4 a judge cannot tell, or jobs have not run; 0 otherwise.

    >>> decide_exit_code([], ["completed", "timeout"])
    3
    >>> decide_exit_code([], ["completed"]), decide_exit_code([], ["completed"], not_run=2)
    (0, 4)
    """
    found = {verdict.status for verdict in verdicts}
    if any(state != "completed" for state in states):
        return 3
    if "regressed" in found:
        return 1
    return 4 if "cannot_tell" in found or not_run else 0


def describe_exit(exit_code: int, verdicts: Sequence[Verdict], checked: int = 0, not_run: int = 0) -> str:
    """The exit code of a night in words.

    Args:
        exit_code: of the night.
        verdicts: what the judges said.
        checked: how many numbers its jobs checked themselves.
        not_run: how many planned jobs have no outcome.

    >>> describe_exit(3, [])
    'a job did not complete'
    """
    regressed = sum(verdict.status == "regressed" for verdict in verdicts)
    found = f"{regressed} series regressed" if regressed else ""
    if exit_code == 3:
        return "a job did not complete" + (f", and {found}" if found else "")
    if exit_code == 4:
        absent = sum(verdict.judge == "presence" for verdict in verdicts)
        why = f"{absent} due series are absent or unusable" if absent > 1 else "one due series is absent or unusable"
        why = why if absent else ""
        why = describe_not_run(not_run) if not_run else why or "at least one judge cannot tell"
        return f"no regression found, but {why}"
    if found or verdicts:
        return found or "all is well"
    return "all jobs completed" + (f" and checked {checked} numbers" if checked else ", nothing was judged")


def describe_not_run(number: int) -> str:
    """That planned jobs have no outcome.

    >>> describe_not_run(3), describe_not_run(12)
    ('three jobs have not run', '12 jobs have not run')
    """
    words = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
    return f"{words[number] if number < len(words) else number} job{' has' if number == 1 else 's have'} not run"


def read_verdicts(path: Path) -> NightVerdicts:
    """Reads a `verdicts.json`.

    Raises:
        InputError: the file is missing, truncated, of a foreign or newer schema, or has a wrong key or type.
    """
    return read_document(path, NightVerdicts, VERDICTS_SCHEMA)


def write_verdicts(path: Path, verdicts: NightVerdicts) -> None:
    """Writes `verdicts.json`, whole or not at all."""
    write_json(path, verdicts)
