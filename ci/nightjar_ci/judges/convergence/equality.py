"""Comparison of a cell's curve with another cell of the same night, such as sharded with single-device training.

In: the results of both cells, a policy with `same_as`. Out: one verdict of the convergence judge. Equal seeds are
compared; the tolerance allows for reordered sums only.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nightjar_ci.formats.policy import ConvergencePolicy
from nightjar_ci.formats.run_record import RunRecord
from nightjar_ci.formats.verdict import Effect, Verdict
from nightjar_ci.judges.convergence.curve_faults import find_faults
from nightjar_ci.judges.convergence.scale import as_relative, on_scale
from nightjar_ci.judges.finding import Finding, count, percent, worst_of


def judge_equality(
    cell: str, name: str, runs: Sequence[RunRecord], others: Sequence[RunRecord], policy: ConvergencePolicy
) -> Verdict:
    """Judges whether a curve of a cell equals the curve of `policy.same_as`, seed by seed.

    Args:
        policy: a policy with `same_as` and `rtol`.
    """
    by_seed = {run.seed: run for run in others}
    findings = [finding for run in runs for finding in _compare(name, run, by_seed.get(run.seed), policy)]
    worst = worst_of(findings)
    return Verdict(
        series=f"{cell}/{name}",
        judge="convergence",
        status=worst.status,
        effect=worst.effect,
        n=len(runs),
        policy=policy.numbers(),
        runs=tuple(run.job for run in (*runs, *others)),
        explanation=worst.explanation,
        details=tuple(finding.explanation for finding in findings if finding is not worst),
    )


def _compare(name: str, run: RunRecord, other: RunRecord | None, policy: ConvergencePolicy) -> Sequence[Finding]:
    if other is None or (reference := other.curve(name)) is None:
        text = f"{policy.same_as} has no {name} of seed {run.seed} tonight to compare with."
        return [Finding(status="cannot_tell", explanation=text)]
    ours = run.curve(name)
    if ours is not None and (ours.unit, ours.better) != (reference.unit, reference.better):
        text = f"The {name} of seed {run.seed} is in {ours.unit}, that in {policy.same_as} in {reference.unit}."
        return [Finding(status="cannot_tell", explanation=text)]
    steps = reference.steps[: policy.window]
    if policy.window is not None:
        run = _first_steps(run, name, steps)
    faults = list(find_faults(run, name, steps))
    curve = run.curve(name)
    if faults or curve is None:
        return faults
    scaled = on_scale([curve.values, reference.values[: len(steps)]], policy.scale)
    if scaled is None or not np.isfinite(scaled).all():
        text = f"The {name} of seed {run.seed} in {policy.same_as} has values that cannot be compared."
        return [Finding(status="cannot_tell", explanation=text)]
    shift = scaled[0] - scaled[1]
    rtol = policy.rtol or 0.0
    size = as_relative(float(shift[np.abs(shift).argmax()]), policy.scale)
    effect = Effect(value=size, unit=f"{name} against {policy.same_as}, largest step")
    over = np.abs(shift) > rtol
    if not over.any():
        text = f"Seed {run.seed} equals {policy.same_as} within {rtol:g} over {count(len(steps), 'step')} "
        return [Finding(status="ok", explanation=text + f"(largest difference {percent(size)}).", effect=effect)]
    text = f"The {name} of seed {run.seed} departs from that of {policy.same_as} at step {steps[int(over.argmax())]} "
    text += f"(by up to {percent(size)}, allowed: {rtol:g}): the two programs do not compute the same numbers."
    return [Finding(status="regressed", explanation=text, effect=effect)]


def _first_steps(run: RunRecord, name: str, steps: Sequence[int]) -> RunRecord:
    curve = run.curve(name)
    if curve is None or not steps:
        return run
    keep = sum(step <= steps[-1] for step in curve.steps)
    cut = curve.model_copy(update={"steps": curve.steps[:keep], "values": curve.values[:keep]})
    return run.model_copy(update={"curves": (cut,)})
