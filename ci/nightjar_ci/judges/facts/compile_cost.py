"""Judge of compile cost: CPU seconds and peak memory of the compiler, per cell.

In: the compile cost of each cell, tonight and before on the same kind of machine, and the growth that a policy allows.
Out: cost verdict for each cell with earlier numbers.

CPU seconds repeat better than wall time, but still vary with the load of the machine. So each cell is also compared
with the whole night: if most cells are slower by some factor, that factor is attributed to the machine, up to the
allowed growth. With 30 % allowed, a single cell regresses at 1.3 times its earlier cost, a whole night at 1.69. Memory
does not depend on the load and is not corrected.
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
_LEAST_CELLS = 3  # fewer cells do not tell how fast the machine was


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileCost:
    """The compile cost of a cell by measure, tonight and before.

    Attributes:
        runs: ids of the night's jobs.
        source: where `before` comes from, such as `the committed baseline`.
    """

    cell: str
    runs: tuple[str, ...]
    now: Mapping[str, float]
    before: Mapping[str, float]
    source: str


def judge_compile_cost(night: Sequence[CompileCost], policies: Mapping[str, FactsPolicy]) -> list[Verdict]:
    """Judges the cells of a night.

    Args:
        policies: by cell; `growth` is the allowed growth per measure; other measures are not judged.
    """
    factors = {_TIME: _machine_factor(night)}
    verdicts = []
    for cost in night:
        policy = policies[cost.cell]
        findings = [
            _judge(cost, measure, policy.growth[measure], factors.get(measure, 1.0))
            for measure in MEASURES
            if measure in policy.growth and cost.now.get(measure) and cost.before.get(measure)
        ]
        if findings:
            worst = worst_of(findings)
            verdicts.append(
                Verdict(
                    series=f"{cost.cell}/{NAME}",
                    judge="facts",
                    status=worst.status,
                    effect=worst.effect,
                    n=len(cost.runs),
                    policy=policy.numbers(),
                    runs=cost.runs,
                    explanation=worst.explanation,
                    details=tuple(finding.explanation for finding in findings if finding is not worst),
                )
            )
    return verdicts


def _machine_factor(night: Sequence[CompileCost]) -> float:
    """The median factor by which compiling is slower than before; at least 1."""
    factors = [cost.now[_TIME] / cost.before[_TIME] for cost in night if cost.now.get(_TIME) and cost.before.get(_TIME)]
    if len(factors) < _LEAST_CELLS:
        return 1.0
    return max(median(factors), 1.0)


def _judge(cost: CompileCost, measure: str, allowed: float, machine: float) -> Finding:
    description, unit, scale = MEASURES[measure]
    was, now = cost.before[measure], cost.now[measure]
    machine = min(machine, 1.0 + allowed)
    growth = now / was / machine - 1.0
    numbers = f"{was / scale:.3g} -> {now / scale:.3g} {unit} ({percent(now / was - 1)})"
    machine_note = ""
    if machine > 1.0:
        machine_note = f"; the night as a whole is slower by {percent(machine - 1)}"
    effect = Effect(value=growth, unit=measure)
    if growth > allowed:
        text = f"{description}: more than in {cost.source}: {numbers}, {percent(allowed)} allowed{machine_note}."
        return Finding(status="regressed", explanation=text, effect=effect)
    return Finding(
        status="ok", explanation=f"{description}: as in {cost.source}: {numbers}{machine_note}.", effect=effect
    )
