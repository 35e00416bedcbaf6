"""The classifier that applies the gate's judges and policies between a rung and the good end.

In: the result of a rung's test and one of the good end; policies; a baseline. Out: a
`Classification`. If the worst verdict is *cannot tell*, so is the classification. Compile facts are compared with the
good end's. A curve with a committed baseline is judged as on any night. A curve without one is compared with the good
end, by the policy's own numbers. So is a curve whose policy names a sibling cell, because a bisection does not run that
cell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from nightjar_ci.baselines.baseline import ConvergenceBaseline
from nightjar_ci.bisect.probing.classify import Classification, why_not_run
from nightjar_ci.formats.night_folder import read_result
from nightjar_ci.formats.outcome import Outcome
from nightjar_ci.formats.policy import POLICIES_SCHEMA, ConvergencePolicy, Policies
from nightjar_ci.formats.run_record import Better, RunRecord
from nightjar_ci.formats.verdict import Verdict
from nightjar_ci.judges.convergence.convergence import judge_convergence
from nightjar_ci.judges.convergence.equality import judge_equality
from nightjar_ci.judges.facts.facts import KnownFacts, judge_facts

GOOD_END = "the good end"
_WORST_FIRST = ("regressed", "cannot_tell")
Judge = Literal["facts", "convergence"]
JUDGES: tuple[Judge, ...] = ("facts", "convergence")


def default_policies() -> Policies:
    """The policies without a policies file: curves equal within 1e-4, programs alike."""
    return Policies.model_validate(
        {
            "schema": POLICIES_SCHEMA,
            "convergence": [{"curve": "*", "same_as": GOOD_END, "rtol": 1e-4}],
            "facts": [{"tolerance": {"memory.generated_code_bytes": float("inf")}}],  # depends on the processor
        }
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GateJudge:
    """A judge of the gate, applied between a rung's `result.json` and the good end's.

    Attributes:
        judges: `facts`: any program compiles differently; `convergence`: its curve differs.
        cell: whose policies and baseline; the ones for all cells if empty.
    """

    judges: tuple[Judge, ...]
    policies: Policies
    cell: str = ""
    baseline: ConvergenceBaseline | None = None
    better: Better | None = None

    def read(self, outcome: Outcome, folder: Path, good_end: RunRecord | None) -> Classification:
        why = why_not_run(outcome, folder)
        record = None if why else read_result(folder)
        if record is None:
            return Classification(answer="cannot_tell", why=why or f"it left no nightjar.run/1 in {folder}")
        return read_verdicts(
            [verdict for judge in self.judges for verdict in self._judge(judge, record, good_end or record)]
        )

    def _judge(self, judge: Judge, record: RunRecord, reference: RunRecord) -> list[Verdict]:
        if judge == "facts":
            reference_facts = KnownFacts(facts=reference.facts, source=GOOD_END, flags=reference.environment.flags)
            programs = dict.fromkeys(facts.program for facts in (*reference.facts, *record.facts))
            policies = [(name, self.policies.for_facts(self.cell, name)) for name in programs]
            return [
                judge_facts(self.cell, name, [record], reference_facts, how)
                for name, how in policies
                if how is not None
            ]
        names = dict.fromkeys(curve.name for curve in (*reference.curves, *record.curves))
        curves = [(name, self.policies.for_curve(self.cell, name)) for name in names]
        return [self._judge_curve(name, record, reference, how) for name, how in curves if how is not None]

    def _judge_curve(self, name: str, record: RunRecord, reference: RunRecord, how: ConvergencePolicy) -> Verdict:
        if how.same_as is None and self.baseline is not None and self.baseline.curve(name) is not None:
            return judge_convergence(self.cell, name, [record], self.baseline, how)
        return judge_equality(self.cell, name, [record], [reference], _against_good_end(how))


def _against_good_end(how: ConvergencePolicy) -> ConvergencePolicy:
    """The policy's same-seed comparison, with the good end in the place of baseline or sibling."""
    sibling = how.same_as is not None
    rtol = how.rtol or how.paired_rtol or how.early_rtol
    window = how.window if sibling or how.paired_rtol is not None else how.early_steps
    return how.model_copy(update={"same_as": GOOD_END, "rtol": rtol, "window": window})


def read_verdicts(verdicts: Sequence[Verdict]) -> Classification:
    if not verdicts:
        return Classification(answer="cannot_tell", why="there is nothing in its result that a policy judges")
    worst = next((verdict for status in _WORST_FIRST for verdict in verdicts if verdict.status == status), None)
    if worst is None:
        return Classification(answer="good")
    return Classification(answer="bad" if worst.status == "regressed" else "cannot_tell", why=worst.explanation)
