"""Judge of compile facts: exactly, or within a tolerance of the policy.

In: the night's facts of a program (all replicates), the baseline's facts, a policy. Out: one verdict with the
difference as text (`fusion kLoop 76 -> 177 (+101)`). Facts are deterministic, so one run decides and there is no error
rate. Any difference beyond its tolerance is a regression, even if it looks like an improvement: the program changed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nightjar_ci.formats.policy import FactsPolicy
from nightjar_ci.formats.run_record import Facts, RunRecord
from nightjar_ci.formats.verdict import Effect, Verdict
from nightjar_ci.judges.facts.diff import changed, diff_lines, flatten
from nightjar_ci.judges.facts.explain import explain_changes
from nightjar_ci.judges.finding import Finding, count, worst_of

_KEY_OPCODES = ("dot", "convolution", "fusion", "custom-call")  # listed if unchanged


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownFacts:
    """Facts to compare with.

    Attributes:
        source: their origin: `the committed baseline`, `the latest earlier night`.
        flags: their compiler flags, or None if unknown.
    """

    facts: tuple[Facts, ...]
    source: str
    flags: Mapping[str, str] | None = None


def judge_facts(
    cell: str, program: str, runs: Sequence[RunRecord], reference: KnownFacts | None, policy: FactsPolicy
) -> Verdict:
    """Judges the facts of one program of a cell.

    Args:
        runs: the night's results of the cell, at least one, with the same facts key.
        reference: facts with the same facts key to compare with, or None.
    """
    facts_by_job = {run.job: _program(run.facts, program) for run in runs}
    first_job, first = next(iter(facts_by_job.items()))
    findings = [
        _describe(first, facts, policy, f"{job} and {first_job} were compiled differently, though they are replicates")
        for job, facts in facts_by_job.items()
        if facts != first
    ]
    details: list[str] = []
    if reference is None:
        findings.append(Finding(status="cannot_tell", explanation=_no_baseline(cell, runs[0])))
    else:
        before = _program(reference.facts, program)
        findings.append(_describe(before, first, policy, f"{program} is not compiled as in {reference.source}"))
        details = [*diff_lines(before, first, policy), *_unchanged(before, first)]
        if before is not None and first is not None:
            details = [*(sentence.text for sentence in explain_changes(before, first, policy)), *details]
        if reference.flags is not None and details:
            flags, usual = runs[0].environment.flags, reference.flags
            differing = (name for name in sorted({*flags, *usual}) if flags.get(name) != usual.get(name))
            details += [
                f"flag {name}: {usual.get(name, 'absent')} -> {flags.get(name, 'absent')}" for name in differing
            ]
    worst = worst_of(findings)
    return Verdict(
        series=f"{cell}/{program}",
        judge="facts",
        status=worst.status,
        effect=worst.effect,
        n=len(runs),
        policy=policy.numbers(),
        runs=tuple(run.job for run in runs),
        explanation=worst.explanation,
        details=tuple([finding.explanation for finding in findings if finding is not worst] + details),
    )


def mark_new(verdict: Verdict, now: Sequence[Facts], latest: Sequence[Facts], policy: FactsPolicy) -> Verdict:
    """The verdict with a line about whether a regression is new tonight."""
    if verdict.status != "regressed":
        return verdict
    program = verdict.measure
    new = changed(_program(latest, program), _program(now, program), policy)
    line = "as in the latest earlier night"
    if new:
        line = "new tonight: the latest earlier night was compiled differently"
    return verdict.model_copy(update={"details": (*verdict.details, line)})


def _describe(before: Facts | None, after: Facts | None, policy: FactsPolicy, text: str) -> Finding:
    if before is None or after is None:
        if before is after:
            return Finding(status="ok", explanation="The program exists neither before nor now.")
        change = "vanished"
        if before is None:
            change = "appeared"
        return Finding(status="regressed", explanation=f"{text}: it {change}.")
    changes = changed(before, after, policy)
    if not changes:
        total = sum(tally.count for tally in after.opcodes.values())
        text = f"All facts are equal or within their tolerance ({count(total, 'instruction')})."
        return Finding(status="ok", explanation=text, effect=Effect(value=0.0, unit="compile facts"))
    sentences = [sentence.text for sentence in explain_changes(before, after, policy)]
    lines = [*sentences, *diff_lines(before, after, policy)]
    worst = max(changes, key=lambda name: (name.endswith(".count"), math.isfinite(changes[name]), abs(changes[name])))
    effect = Effect(value=changes[worst], unit=worst)
    text += f": {', '.join(lines[:3])}"
    if len(lines) > 3:
        text += f" and {len(lines) - 3} more"
    return Finding(status="regressed", explanation=f"{text}.", effect=effect)


def _unchanged(before: Facts | None, after: Facts | None) -> list[str]:
    old, new = flatten(before), flatten(after)
    names = [name for name in _KEY_OPCODES if old.get(f"opcodes.{name}.count") is not None]
    same = [f"{name} {old[key]:g}" for name in names if old[key := f"opcodes.{name}.count"] == new.get(key)]
    if not same or old == new:
        return []
    return [f"unchanged: {', '.join(same)}"]


def _program(facts: Sequence[Facts], program: str) -> Facts | None:
    return next((entry for entry in facts if entry.program == program), None)


def _no_baseline(cell: str, run: RunRecord) -> str:
    command = f"nightjar-ci baseline MATRIX --jobs '{cell}*' --facts-only"
    return f"There is no baseline for {run.environment.facts_key}: make one with `{command}`."
