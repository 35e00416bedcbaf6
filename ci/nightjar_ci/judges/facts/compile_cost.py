"""Does the compiler take more time or memory than it did? Seconds of CPU, and its peak memory, cell by cell.

In: what compiling each cell took tonight and before on the same kind of machine, and how much more a policy allows.
Out: one verdict for each cell that has something to compare with.

Seconds of CPU repeat better than seconds of the clock, and still vary with what else the machine does. So a cell is
held against the whole night as well: where most cells take longer by one factor, the machine is taken for the cause,
up to the growth that is allowed. With 30 % allowed, a cell alone is named at 1.3 times what it took, a whole night at
1.69. Memory does not depend on what else runs, and nothing is taken off it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from nightjar_ci.baselines.compile_cost import MEASURES
from nightjar_ci.formats.policy import FactsPolicy
from nightjar_ci.formats.verdict import Effect, Verdict
from nightjar_ci.judges.finding import Finding, percent, worst_of

NAME = "compiler"  # of the series: `<cell>/compiler`
_TIME = "compile_cpu_time"
_LEAST_CELLS = 3  # a night of fewer says nothing about its machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What the compiler took for a cell, by measure.

    Attributes:
        runs: ids of tonight's jobs.
        source: of `before`, such as `the committed baseline`.
    """

    cell: str
    runs: tuple[str, ...]
    now: Mapping[str, float]
    before: Mapping[str, float]
    source: str


def judge_compilers(night: Sequence[Taken], policies: Mapping[str, FactsPolicy]) -> list[Verdict]:
    """Judges the cells of a night.

    Args:
        night: its cells, those without earlier numbers left out.
        policies: by cell; `growth` says how much more is allowed, and a measure that it does not name is not judged.
    """
    machine = _machine(night)
    verdicts = []
    for one in night:
        policy = policies[one.cell]
        findings = [
            _judge(one, measure, policy.growth[measure], machine if measure == _TIME else 1.0)
            for measure in MEASURES
            if measure in policy.growth and one.now.get(measure) and one.before.get(measure)
        ]
        if findings:
            worst = worst_of(findings)
            verdicts.append(
                Verdict(
                    series=f"{one.cell}/{NAME}",
                    judge="facts",
                    status=worst.status,
                    effect=worst.effect,
                    n=len(one.runs),
                    policy=policy.numbers(),
                    runs=one.runs,
                    explanation=worst.explanation,
                    details=tuple(finding.explanation for finding in findings if finding is not worst),
                )
            )
    return verdicts


def _machine(night: Sequence[Taken]) -> float:
    """By which factor this night's compilers are slower than earlier ones, as most cells see it; at least 1."""
    factors = [one.now[_TIME] / one.before[_TIME] for one in night if one.now.get(_TIME) and one.before.get(_TIME)]
    return max(median(factors), 1.0) if len(factors) >= _LEAST_CELLS else 1.0


def _judge(one: Taken, measure: str, allowed: float, machine: float) -> Finding:
    what, unit, scale = MEASURES[measure]
    was, now = one.before[measure], one.now[measure]
    machine = min(machine, 1.0 + allowed)
    growth = now / was / machine - 1.0
    numbers = f"{was / scale:.3g} -> {now / scale:.3g} {unit} ({percent(now / was - 1)})"
    share = f"; the night as a whole is slower by {percent(machine - 1)}" if machine > 1.0 else ""
    effect = Effect(value=growth, unit=measure)
    if growth > allowed:
        text = f"{what}: more than in {one.source}: {numbers}, {percent(allowed)} allowed{share}."
        return Finding(status="regressed", explanation=text, effect=effect)
    return Finding(status="ok", explanation=f"{what}: as in {one.source}: {numbers}{share}.", effect=effect)
