"""The answer of a bisection: the conclusion in words, with its evidence (`answer.json`, `nightjar.answer/1`).

In: the ladder, the probes and the search's conclusion. Out: an `Answer`, plain data that `report` renders.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from statistics import median
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from nightjar_ci.bisect.ladders.rung import Rung
from nightjar_ci.bisect.result.difference import Change
from nightjar_ci.bisect.search.types import Conclusion, Kind
from nightjar_ci.bisect.state import Find, Probe, Strict

_MOST_REASONS, _MOST_OF_A_REASON = 3, 600  # rungs that could not tell, and letters of the reason
FOUND: tuple[Kind, ...] = ("culprit", "two_changes", "program_change")


class Side(Strict):
    """The last rung before the culprit, or the culprit.

    Attributes:
        answers: test results there: `good` or `bad`.
        reproduce: a command line that tests it again.
    """

    name: str
    answers: Literal["good", "bad"]
    reproduce: str


class RungSummary(Strict):
    """One rung in the answer: its results, and the probability that the change came with it."""

    name: str
    when: str | None
    note: str | None
    probability: float | None
    good: int
    bad: int
    cannot_tell: int
    values: tuple[float, ...]
    why: str | None


class Answer(Strict):
    """The end of a bisection.

    Attributes:
        culprits: names of the rungs that the (first) change may have come with; only one if it is known.
        second: the same of the second of two changes.
        effect: how the metric changed, in words.
        inside: the merge whose branch was bisected.
        second_changes, second_before, second_after: the same of the second of two changes.
        duration_s: time that tests and builds took, one after the other.
        wall_s: time in which at least one of them ran.
        programs: how the compiled programs of the two sides differ, with HLO instructions and Python lines.
        explained: how captures of both sides and the compiler's programs differ.
        pages: the differences of captures as pages, below the answer's folder.
    """

    schema_: Annotated[Literal["nightjar.answer/1"], Field(alias="schema")] = "nightjar.answer/1"
    id: str
    find: Find
    kind: Kind
    title: str
    message: str
    culprits: tuple[str, ...]
    second: tuple[str, ...] = ()
    probability: float
    effect: str | None
    inside: str | None
    changes: tuple[Change, ...]
    before: Side | None
    after: Side | None
    second_changes: tuple[Change, ...] = ()
    second_before: Side | None = None
    second_after: Side | None = None
    places: tuple[RungSummary, ...]
    probes: tuple[Probe, ...]
    command: tuple[str, ...]
    metric: str | None
    tests: int
    builds: int
    duration_s: float
    wall_s: float | None = None
    notes: tuple[str, ...]
    programs: tuple[str, ...] = ()
    explained: tuple[str, ...] = ()
    pages: tuple[str, ...] = ()

    model_config = ConfigDict(populate_by_name=True)

    @property
    def steps(self) -> tuple[tuple[Side, Side, tuple[Change, ...]], ...]:
        """Both sides of each change, and the differences between them."""
        sides = (
            (self.before, self.after, self.changes),
            (self.second_before, self.second_after, self.second_changes),
        )
        return tuple((old, new, changes) for old, new, changes in sides if old is not None and new is not None)

    @property
    def found(self) -> bool:
        return self.kind in FOUND

    @property
    def exit_code(self) -> int:
        if self.found:
            return 0
        return 4


# By kind; a culprit has words of its own.
_TITLES: dict[Kind, str] = {
    "program_change": "The compiled programs change only with {name}; the machine is too loud to time them.",
    "two_changes": "Two changes: with {name} and with {second} {sure}.",
    "good_end_is_bad": "{first}, said to be {old}, is {new}.",
    "bad_end_is_good": "{last}, said to be {new}, is {old}.",
    "too_rare": "Cannot tell yet whether {last} is {new}: if it fails, then too rarely.",
    "no_change": "{first} and {last} do not differ.",
    "drift": "No single rung changed it: it drifts from {first} to {last}.",
    "too_loud": "The machine is too loud to tell{probable}.",
    "unbuildable": "An end could not be tested, so nothing was learned.",
    "budget_out": "Not found{probable}.",
}


def title(conclusion: Conclusion, rungs: Sequence[Rung], find: Find, inside: str | None) -> str:
    verb, old, new = "came with", "good", "bad"
    if find == "fix":
        verb, old, new = "was mended by", "bad", "good"
    names, second = name_rungs(conclusion.culprits, rungs), name_rungs(conclusion.second, rungs)
    caveat = f"; {conclusion.caveat}" if conclusion.caveat else ""
    sure = f"(probability {conclusion.probability:.3f}{caveat})"
    if conclusion.kind == "culprit":
        which = names[0] if len(names) == 1 else f"one of {names[0]} to {names[-1]}"
        undone = rungs[conclusion.culprits[0]].undone if conclusion.culprits and len(names) == 1 else None
        if undone is not None:
            return f"It {verb} leaving out {undone}, which the other end lacks {sure}."
        where = f", inside of {inside}" if inside else ""
        return f"It {verb} {which}{where} {sure}."
    return _TITLES[conclusion.kind].format(
        name=next(iter(names), ""),
        second=next(iter(second), ""),
        first=rungs[0].name,
        last=rungs[-1].name,
        old=old,
        new=new,
        sure=sure,
        probable=f"; most probable is {names[0]} {sure}" if names else "",
    )


def name_rungs(places: tuple[int, int] | None, rungs: Sequence[Rung]) -> tuple[str, ...]:
    if places is None:
        return ()
    return tuple(name for rung in rungs[places[0] : places[1] + 1] for name in (*rung.unknown, rung.name))


def describe_failures(places: Sequence[RungSummary], conclusion: Conclusion) -> str | None:
    """The number of failed tests on either side of one change.

    >>> rungs = [RungSummary(name="", when=None, note=None, probability=None, good=good, bad=4 - good, cannot_tell=0,
    ...     values=(), why=None) for good in (4, 3, 0)]
    >>> describe_failures(rungs, Conclusion(kind="culprit", message="", culprits=(2, 2)))
    '1 of 8 before, 4 of 4 from there on'
    """
    if conclusion.culprits is None:
        return None
    sides = places[: conclusion.culprits[0]], places[conclusion.culprits[1] :]
    before, after = (f"{sum(p.bad for p in side)} of {sum(p.good + p.bad for p in side)}" for side in sides)
    return f"{before} before, {after} from there on"


def describe_effect(conclusion: Conclusion) -> str | None:
    """How the metric changed.

    >>> from nightjar_ci.bisect.search.types import Level
    >>> describe_effect(Conclusion(kind="culprit", message="", good=Level(mean=2, low=2, high=2),
    ...     bad=Level(mean=8, low=8, high=8), effect=3.0, effect_is_relative=True))
    '2 -> 8, 4 times as much'
    """
    if conclusion.good is None or conclusion.bad is None or conclusion.effect is None:
        return None
    steps = (conclusion.good, conclusion.middle, conclusion.bad)
    least = 1e-6 * max(abs(conclusion.good.mean), abs(conclusion.bad.mean))  # less is nothing: a test that never errs
    means = [level.mean if abs(level.mean) > least else 0.0 for level in steps if level is not None]
    text = " -> ".join(f"{mean:.{count_digits(means)}g}" for mean in means)
    if not conclusion.effect_is_relative:
        return text
    is_ratio = conclusion.effect >= 1

    def show(effect: float) -> str:
        if is_ratio:
            return f"{1 + effect:.3g}"
        return f"{100 * effect:+.3g}"

    text += f", {show(conclusion.effect)} {'times as much' if is_ratio else '%'}"
    if conclusion.effect_interval is not None:
        low, high = map(show, conclusion.effect_interval)
        text += f" (pairs of the two: {low} to {high}{'' if is_ratio else ' %'}, 95 %)"
    return text


def count_digits(levels: Sequence[float], least: int = 4) -> int:
    """How many significant digits tell the levels apart.

    >>> count_digits([2.345678, 2.345679]), count_digits([0.0, -0.0])
    (7, 4)
    """
    return next(count for count in range(least, 18) if len({f"{one:.{count}g}" for one in levels}) >= len({*levels}))


def summarize_rungs(
    rungs: Sequence[Rung], probes: Sequence[Probe], posterior: Sequence[float], find: Find
) -> tuple[RungSummary, ...]:
    """The results at each rung.

    Args:
        posterior: probability of each culprit from the second rung on; empty if there is no culprit.
        find: in a search for a fix, the search's good is bad; here good means good to the user.
    """
    good, bad = "good", "bad"
    if find == "fix":
        good, bad = bad, good
    places = []
    values = _values(probes)
    for index, rung in enumerate(rungs):
        here = [probe for probe in probes if probe.rung == index]
        unsure = [probe for probe in here if probe.outcome == "cannot_tell"]
        places.append(
            RungSummary(
                name=rung.name,
                when=rung.when,
                note=rung.note,
                probability=float(posterior[index - 1]) if index and len(posterior) else None,
                good=sum(probe.outcome == good for probe in here),
                bad=sum(probe.outcome == bad for probe in here),
                cannot_tell=len(unsure),
                values=tuple(values.get(index, ())),
                why=unsure[-1].why if unsure else None,
            )
        )
    return tuple(places)


def state_posterior(posterior: Sequence[float], conclusion: Conclusion) -> list[float]:
    """Probability of each culprit from the second rung on: the named culprit's is at most the answer's.

    There is none if an end was misjudged.
    """
    if conclusion.kind in ("no_change", "good_end_is_bad", "bad_end_is_good", "too_rare", "unbuildable"):
        return []
    stated = [float(chance) for chance in posterior]
    if conclusion.kind == "culprit" and conclusion.culprit is not None:
        stated[conclusion.culprit - 1] = min(stated[conclusion.culprit - 1], conclusion.probability)
    return stated


def find_wall_time(probes: Sequence[Probe]) -> float:
    """The seconds in which at least one probe ran; pauses of an interrupted bisection do not count."""
    total, last = 0.0, 0.0
    for probe in sorted(probes, key=lambda probe: datetime.fromisoformat(probe.started_at)):
        start = datetime.fromisoformat(probe.started_at).timestamp()
        end = start + probe.build_s + probe.test_s
        total += max(0.0, end - max(start, last))
        last = max(last, end)
    return total


def why_not(places: Sequence[RungSummary]) -> list[str]:
    unsure = [row for row in places if row.why is not None]
    return [f"{row.name} cannot tell: {(row.why or '').strip()[:_MOST_OF_A_REASON]}" for row in unsure[:_MOST_REASONS]]


def _values(probes: Sequence[Probe]) -> dict[int, list[float]]:
    """The metric of each rung; of pairs with the good end, as it would be if that always were at its median."""
    values: dict[int, list[float]] = {}
    measured = [probe for probe in probes if probe.value is not None]
    if not any(probe.against is not None for probe in measured):
        for probe in measured:
            values.setdefault(probe.rung, []).append(probe.value or 0.0)
        return values
    reference = measured[0].against or 0  # an end comes first
    pairs = [(probe.rung, probe.value or 0.0, probe.beside or 0.0) for probe in measured if probe.against == reference]
    usual = median(beside for _, _, beside in pairs)
    relative = all(value > 0 and beside > 0 for _, value, beside in pairs)
    values[reference] = [usual]
    for rung, value, beside in pairs:
        values.setdefault(rung, []).append(value / beside * usual if relative else value - beside + usual)
    return values
