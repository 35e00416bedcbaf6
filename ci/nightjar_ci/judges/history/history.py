"""The judge of histories: whether a measure became worse, confirmed by paired re-runs.

In: the series of a measure up to tonight, and pairs of re-runs if they were made. Out: one verdict.

If the last nights stand out, the verdict asks for pairs, and the pairs decide. Without pairs, the history alone shows a
jump far beyond its noise after three nights, and a smaller change once it has lasted eight. A regression stands until
its level returns (see `open_regression`). docs/statistics.md derives the error rates of each.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from nightjar_ci.formats.policy import HistoryPolicy
from nightjar_ci.formats.series import Series
from nightjar_ci.formats.verdict import Effect, Verdict
from nightjar_ci.judges.convergence.envelope import Array
from nightjar_ci.judges.finding import Finding, count, percent, show_p
from nightjar_ci.judges.history.change_points import LEAST, STRETCHES, Change, find_changes
from nightjar_ci.judges.history.jump import REFERENCE, find_jump
from nightjar_ci.judges.history.open_regression import LEFT, Standing, find_standing
from nightjar_ci.judges.history.rank_test import find_shift
from nightjar_ci.judges.history.screening import LONGEST, find_suspicion
from nightjar_ci.judges.history.segment import Segment, current_segment
from nightjar_ci.judges.performance.performance import Pair, log_ratio
from nightjar_ci.judges.performance.sequential import Decision, decide

SINCE = 10  # nights back to the one that tonight is compared with: so a step that was missed on its first nights counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Rerun:
    """Interleaved pairs of tonight's environment and that of an earlier night."""

    reference: str
    pairs: Sequence[Pair]


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """Why a series is worth a second look tonight.

    Attributes:
        p: of the last nights standing out.
        nights: how many of the last nights do.
        change: the latest lasting change, where it is within the window; its index is the segment's.
        jump: the last nights, where they lie far beyond all others.
        good_night: the night to compare tonight with.
        suspicious: whether pairs are worth running.
    """

    p: float
    nights: int
    change: Change | None
    jump: Change | None
    good_night: str
    suspicious: bool


def find_doubt(segment: Segment, policy: HistoryPolicy) -> Doubt | None:
    """What the history of a segment says about tonight; None where it is too short."""
    count_nights = len(segment.values)
    if count_nights <= policy.min_nights:
        return None
    first = max(0, count_nights - 2 * policy.window)
    recent = [
        replace(change, index=first + change.index)
        for change in find_changes(segment.values[first:])
        if abs(change.shift) > np.log1p(policy.floor)
    ]
    change = recent[-1] if recent else None
    settled = [one.index for one in recent if count_nights - one.index >= policy.min_nights + LONGEST]
    level = segment.values[max(settled, default=0) :]  # nights before a lasting change say nothing about this level
    suspicion = find_suspicion(level, policy.window, np.log1p(policy.floor), policy.min_nights)
    jump = _find_jump(segment, level, policy)
    if change is not None and change.index < count_nights - policy.window:
        change = None  # by now it is what the series is
    good = count_nights - 1 - SINCE
    fresh = change is not None and change.shift > 0 and change.index > good - LEAST
    if change is not None and fresh:
        good = min(good, change.index - 1)
    return Doubt(
        p=float(suspicion.p),
        nights=int(suspicion.nights),
        change=change,
        jump=jump,
        good_night=segment.nights[max(0, good)],
        suspicious=float(suspicion.p) <= policy.trigger or fresh or jump is not None,
    )


def _find_jump(segment: Segment, level: Array, policy: HistoryPolicy) -> Change | None:
    """The jump at the end of the current level, as a change of the segment."""
    least = float(np.log1p(policy.jump)) if segment.scale == "log" else policy.jump
    jump = find_jump(level, least, float(np.log1p(policy.floor)), policy.min_nights)
    if not (nights := int(jump.nights)):
        return None
    shift, low, high = find_shift(level[-nights:], level[:-nights][-REFERENCE:])
    return Change(index=len(segment.values) - nights, p=float(jump.p), shift=shift, low=low, high=high)


def judge_history(
    series: Series,
    policy: HistoryPolicy,
    *,
    accepted: Collection[str] = (),
    rerun: Rerun | None = None,
    earlier: Verdict | None = None,
) -> Verdict | None:
    """Judges the last night of a series.

    Args:
        series: up to tonight, tonight included.
        policy: trigger, window and the numbers of the pairs.
        accepted: nights from which on a new level is wanted.
        rerun: the pairs, where a doubt was followed up.
        earlier: the verdict on this history of the latest night before that was judged.

    Returns: None where tonight has no value, or its environment too few nights.
    """
    segment = current_segment(series, policy.scale, accepted)
    if not segment.nights or segment.nights[-1] != series.nights[-1]:
        return None
    doubt = find_doubt(segment, policy)
    if doubt is None:
        return None
    measure = series.name.partition("/")[2]
    standing = find_standing(segment, earlier, policy.window)
    if not (doubt.suspicious if standing is None or standing.gone else standing.perhaps_gone):
        rerun = None  # pairs that another measure of the cell asked for
    decision = None if rerun is None else decide(_ratios(rerun, measure), policy)
    origin = _origin(segment, doubt, standing, paired=decision is not None)
    if standing is not None and _stands(standing, decision):
        assert earlier is not None
        finding = _describe_standing(segment, standing, earlier, measure)
    elif decision is not None and rerun is not None:
        finding = _describe_pairs(segment, decision, rerun.reference, origin["good_night"], policy, measure)
    else:
        finding = _judge_alone(segment, doubt, policy, measure)
    pairs = rerun.pairs if rerun is not None and decision is not None else ()
    return Verdict(
        series=series.name,
        judge="history",
        status=finding.status,
        effect=finding.effect,
        interval=finding.interval,
        p=finding.p,
        n=len(pairs) or min(len(segment.nights), policy.window + doubt.nights),
        policy={
            **policy.numbers(),
            **({"reference": rerun.reference} if rerun is not None and decision is not None else {}),
            **(origin if finding.status == "regressed" else {}),
        },
        runs=tuple(run.job for pair in pairs for run in (pair.candidate, pair.reference) if run is not None)
        or segment.nights[-doubt.nights :],
        explanation=finding.explanation,
        details=tuple(_describe_segment(segment)),
    )


def _describe_segment(segment: Segment) -> Iterator[str]:
    """Which nights of the series tonight is compared with, where it is not all of them."""
    if segment.accepted is not None:
        yield f"compared since night {segment.accepted}, when a change was accepted"
    if segment.elsewhere:
        same = count(len(segment.nights), "night")
        yield f"compared with {same} on the same machine; {segment.elsewhere} on others are left out"


def _ratios(rerun: Rerun, measure: str) -> list[float]:
    return [ratio for pair in rerun.pairs if (ratio := log_ratio(pair, measure)) is not None]


def _origin(segment: Segment, doubt: Doubt, standing: Standing | None, *, paired: bool) -> dict[str, str]:
    """Since when a regression is there, and the last night known to be good."""
    if standing is not None and not standing.gone:
        return {"since": standing.since, "good_night": standing.good_night}
    change = doubt.jump or doubt.change
    if change is None or change.shift <= 0:
        return {"since": segment.nights[-1], "good_night": doubt.good_night}
    good_night = doubt.good_night if paired else segment.nights[change.index - 1]
    return {"since": segment.nights[change.index], "good_night": good_night}


def _stands(standing: Standing, decision: Decision | None) -> bool:
    """Whether an earlier regression stands: until pairs show less than half of it, or without them the nights do."""
    if decision is not None and decision.status != "cannot_tell":
        return decision.status == "regressed" or decision.high >= LEFT * standing.size
    return not standing.gone


def _describe_standing(segment: Segment, standing: Standing, earlier: Verdict, measure: str) -> Finding:
    """A regression that stands; its effect stays the one that was found, and it has no p: it was decided before."""
    now = segment.as_effect(standing.shift)
    return Finding(
        status="regressed",
        explanation=f"{measure} is worse since night {standing.since}, and stays so: the last nights {percent(now)} "
        f"against those up to {standing.good_night}.",
        effect=earlier.effect,
        interval=earlier.interval,
    )


def _describe_pairs(
    segment: Segment, decision: Decision, reference: str, good_night: str, policy: HistoryPolicy, measure: str
) -> Finding:
    """What the pairs say."""
    change = segment.as_effect(decision.mean) if segment.scale == "log" else decision.mean
    interval = segment.as_interval(decision.low, decision.high)
    found = f"{measure} {percent(change)} ({percent(interval[0])} to {percent(interval[1])}) against {reference}"
    found += f" of night {good_night} after {count(decision.pairs, 'interleaved pair')}"
    text = {
        "regressed": f"Slower: {found}.",
        "improved": f"Faster: {found}.",
        "ok": f"History suggested a regression; paired re-runs do not confirm it: {found}.",
        "cannot_tell": f"Perhaps worse, too noisy for the budget: {found}.",
    }[decision.status]
    return Finding(
        status=decision.status,
        explanation=text,
        effect=Effect(value=change, unit=f"median {measure} against {reference}"),
        interval=interval,
        p=min(1.0, policy.trigger * decision.p),  # it was both suspicious and confirmed
    )


def _judge_alone(segment: Segment, doubt: Doubt, policy: HistoryPolicy, measure: str) -> Finding:
    """What history alone says."""
    if doubt.jump is not None:
        return _describe_change(segment, doubt.jump, doubt.jump.p, measure)
    if doubt.change is not None:
        scanned = min(len(segment.values), 2 * policy.window) * len(STRETCHES)  # any night, in any stretch
        return _describe_change(segment, doubt.change, min(1.0, doubt.change.p * scanned), measure)
    recent, before = segment.values[-doubt.nights :], segment.values[: -doubt.nights][-policy.window :]
    shift, low, high = find_shift(recent, before)
    value = segment.as_effect(shift)
    last = "The last night" if doubt.nights == 1 else f"The last {doubt.nights} nights"
    found = f"{last} of {measure}: {percent(value)} against the {len(before)} before"
    text = f"{found}, as chance does ({show_p(doubt.p)})."
    if doubt.suspicious:
        text = f"{found} ({show_p(doubt.p)}): confirm it by paired re-runs against night {doubt.good_night}."
    return Finding(
        status="cannot_tell" if doubt.suspicious else "ok",
        explanation=text,
        effect=Effect(value=value, unit=f"{measure} against {count(len(before), 'earlier night')}"),
        interval=None if np.isinf(low) else segment.as_interval(low, high),
        p=doubt.p,
    )


def _describe_change(segment: Segment, change: Change, p: float, measure: str) -> Finding:
    night, value = segment.nights[change.index], segment.as_effect(change.shift)
    interval = segment.as_interval(change.low, change.high)
    lasted = len(segment.values) - change.index
    return Finding(
        status="regressed" if change.shift > 0 else "improved",
        explanation=f"{measure} is {'worse' if change.shift > 0 else 'better'} since night {night}, for "
        f"{count(lasted, 'night')}: {percent(value)} ({percent(interval[0])} to {percent(interval[1])}).",
        effect=Effect(value=value, unit=f"{measure} since night {night}"),
        interval=interval,
        p=p,
    )
