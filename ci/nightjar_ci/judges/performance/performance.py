"""Performance judge: interleaved pairs of short runs of one job, in the candidate and the reference environment.

In: pairs of results (candidate, reference), each from a fresh process. Out: one verdict; the effect is the relative
change of the median steady value, positive means more. Steps are nested in runs: each run counts once, however many
steps it has.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from nightjar_ci.formats.policy import PerformancePolicy
from nightjar_ci.formats.run_record import RunRecord, Sample
from nightjar_ci.formats.verdict import Effect, Status, Verdict
from nightjar_ci.judges.finding import count, percent
from nightjar_ci.judges.performance.sequential import Decision, decide


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two consecutive runs: the candidate environment and the reference; None if a run has no result."""

    number: int
    candidate: RunRecord | None
    reference: RunRecord | None


def log_ratio(pair: Pair, sample: str) -> float | None:
    """log(candidate / reference) of the median steady values, positive is worse; None if unknown or in other units."""
    ours, theirs = _median(pair.candidate, sample), _median(pair.reference, sample)
    if ours is None or theirs is None or (ours[1].unit, ours[1].better) != (theirs[1].unit, theirs[1].better):
        return None
    ratio = math.log(ours[0] / theirs[0])
    if ours[1].better == "higher":
        return -ratio
    return ratio


def judge_performance(cell: str, pairs: Sequence[Pair], reference: str, policy: PerformancePolicy) -> Verdict:
    """Judges the pairs of a cell in the order of measurement.

    Args:
        pairs: the pairs; failed ones do not count and are listed in the details.
    """
    ratios = {pair.number: log_ratio(pair, policy.sample) for pair in pairs}
    good = [ratio for ratio in ratios.values() if ratio is not None]
    failed = [pair for pair in pairs if ratios[pair.number] is None]
    decision = decide(good, policy)
    unit = f"median {policy.sample} against {reference}"
    higher = any(s.better == "higher" for p in pairs if p.candidate and (s := p.candidate.sample(policy.sample)))
    details = [f"pair {pair.number}: {_why_none(pair, policy.sample)}" for pair in failed]
    if good:
        details.append(f"slower by pair: {', '.join(percent(math.expm1(ratio)) for ratio in good)}")
    status: Status = "cannot_tell"
    effect = interval = p = None
    if decision is None:
        needed = policy.looks[0]
        text = f"Only {len(good)} of {count(len(pairs), 'pair')} have a {policy.sample}; the first look needs {needed}."
    else:
        status, p = decision.status, decision.p
        low, mean, high = (math.expm1(-x if higher else x) for x in (decision.low, decision.mean, decision.high))
        effect, interval = Effect(value=mean, unit=unit), (min(low, high), max(low, high))
        text = _explain(decision, effect, interval, policy, reference)
    return Verdict(
        series=f"{cell}/{policy.sample}",
        judge="performance",
        status=status,
        effect=effect,
        interval=interval,
        p=p,
        n=len(good) if decision is None else decision.pairs,
        policy={**policy.numbers(), "reference": reference},
        runs=tuple(run.job for pair in pairs for run in (pair.candidate, pair.reference) if run is not None),
        explanation=text,
        details=tuple(details),
    )


def _explain(
    decision: Decision, effect: Effect, interval: tuple[float, float], policy: PerformancePolicy, reference: str
) -> str:
    measured = f"{policy.sample} {percent(effect.value)} ({percent(interval[0])} to {percent(interval[1])}) against "
    measured += f"{reference} after {count(decision.pairs, 'interleaved pair')}"
    delta = f"{100 * policy.delta:.3g} %"
    if decision.status == "regressed":
        return f"Slower: {measured}."
    if decision.status == "improved":
        return f"Faster: {measured}."
    if decision.status == "ok":
        return f"Not worse by {delta} or more (at most {percent(math.expm1(decision.upper))}): {measured}."
    budget = policy.looks[-1]
    reason = "too noisy for the budget"
    if decision.pairs < budget:
        reason = f"the budget of {budget} pairs was not used"
    return f"Too uncertain to tell whether it is worse by {delta} or more: {measured}; {reason}."


def _why_none(pair: Pair, name: str) -> str:
    ours, theirs = _median(pair.candidate, name), _median(pair.reference, name)
    if ours is None or theirs is None:
        return f"no {name} on one side"
    return f"{name} in {ours[1].unit} ({ours[1].better} is better) and in {theirs[1].unit} ({theirs[1].better})"


def _median(run: RunRecord | None, name: str) -> tuple[float, Sample] | None:
    if run is None or (sample := run.sample(name)) is None:
        return None
    if not 0 < sample.level < math.inf:
        return None
    return sample.level, sample
