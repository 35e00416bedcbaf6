"""The judge of histories: whether a measure became worse, confirmed by paired re-runs.

In: the series of a measure up to tonight, and pairs of re-runs if they were made. Out: one verdict.

If the last nights stand out, the verdict asks for pairs, and the pairs decide. Without pairs, the history alone shows a
jump far beyond its noise after three nights, a step of the size of the noise after eight or ten, and a smaller change
once it has lasted. A regression stands until its level returns (see `open_regression`). docs/statistics.md derives the
error rates of each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from nightjar_ci.formats.verdict import Effect, Status, Verdict
from nightjar_ci.judges.finding import Finding, count, show_p
from nightjar_ci.judges.history.change_points import Change
from nightjar_ci.judges.history.drift import Drift
from nightjar_ci.judges.history.open_regression import LEFT, OpenRegression
from nightjar_ci.judges.history.rank_sum import find_shift
from nightjar_ci.judges.history.screening import ScreenedSeries
from nightjar_ci.judges.history.segment import Segment
from nightjar_ci.judges.history.shared import Shared
from nightjar_ci.judges.performance.performance import Pair, log_ratio
from nightjar_ci.judges.performance.sequential import Decision, decide


def judge_screened(screened: ScreenedSeries, rerun: tuple[str, Sequence[Pair]] | None = None) -> Verdict:
    """Judges the last night of a series that was screened.

    Args:
        rerun: an earlier environment and interleaved pairs of tonight's and it, if the series was re-run.
    """
    series, policy, segment, screening = screened.series, screened.policy, screened.segment, screened.screening
    quoted, decision, pairs = policy.numbers(), None, list[Pair]()
    if series.of_worst:
        quoted["of_worst"] = True
    if segment.size is not None:
        quoted["scale"] = "linear"  # of the effect
    if screened.shared is not None:
        quoted["shared"] = screened.shared.series
    elif screened.is_open and screened.earlier is not None and "shared" in screened.earlier.policy:
        quoted["shared"] = screened.earlier.policy["shared"]
    if rerun is not None and screened.needs_rerun:  # else the pairs are for another measure of the cell
        reference, made = rerun
        ratios = (log_ratio(pair, series.measure) for pair in made)
        decision = decide([ratio for ratio in ratios if ratio is not None], policy)
    origin = _origin(screened, paired=decision is not None)
    finding = _judge_alone(screened)
    if decision is not None:
        quoted["reference"], pairs = reference, list(made)
        finding = _describe_pairs(screened, decision, reference)
    if _is_still_open(screened.open_regression, decision):
        finding = _describe_open(screened)
    if finding.status == "regressed":
        quoted |= origin
    return Verdict(
        series=series.name,
        judge="history",
        status=finding.status,
        effect=finding.effect,
        interval=finding.interval,
        p=finding.p,
        n=len(pairs) or min(len(segment.nights), policy.window + screening.nights),
        policy=quoted,
        runs=tuple(run.job for pair in pairs for run in (pair.candidate, pair.reference) if run is not None)
        or segment.nights[-screening.nights :],
        explanation=finding.explanation,
        details=tuple(segment.describe()),
    )


def _origin(screened: ScreenedSeries, *, paired: bool) -> dict[str, str]:
    """The first night of a regression, and the last night known to be good."""
    segment, screening = screened.segment, screened.screening
    if screened.open_regression is not None and screened.is_open:
        return {"since": screened.open_regression.since, "good_night": screened.open_regression.good_night}
    if screened.shared is not None:
        return {"since": screened.shared.since, "good_night": screened.shared.good_night}
    change = screening.jump or screening.step or screening.change
    if change is None or change.shift <= 0:
        return {"since": segment.nights[-1], "good_night": screening.good_night}
    good_night = segment.nights[change.index - 1]
    if paired:
        good_night = screening.good_night
    return {"since": segment.nights[change.index], "good_night": good_night}


def _is_still_open(regression: OpenRegression | None, decision: Decision | None) -> bool:
    """Whether an earlier regression is open: until pairs, or without them the nights, show less than half of it."""
    if regression is None:
        return False
    if decision is not None and decision.status != "cannot_tell":
        return decision.status == "regressed" or decision.high >= LEFT * regression.size
    return not regression.gone


def _describe_open(screened: ScreenedSeries) -> Finding:
    """An open regression; it keeps its effect and has no p: it was decided before."""
    regression, earlier = screened.open_regression, screened.earlier
    assert regression is not None
    assert earlier is not None
    now = screened.segment.show(screened.segment.as_effect(regression.shift))
    said, rest = f"is worse since night {regression.since}, and stays so", ""
    if regression.shift < LEFT * regression.size:
        said, rest = f"became worse on night {regression.since} and looks recovered", "; pairs or more nights decide"
    return Finding(
        status="regressed",
        explanation=f"{screened.what} {said}: the last nights {now} against those up to {regression.good_night}{rest}.",
        effect=earlier.effect,
        interval=earlier.interval,
    )


def _describe_pairs(screened: ScreenedSeries, decision: Decision, reference: str) -> Finding:
    segment, measure = screened.segment, screened.series.measure
    ratios = [decision.mean, decision.low, decision.high]
    if segment.size is not None:  # pairs are ratios; the scale is of differences
        ratios = [abs(float(np.median(segment.values))) * math.expm1(ratio) for ratio in ratios]
    change, interval = segment.as_effect(ratios[0]), segment.as_interval(*ratios[1:])
    measured = f"{measure} {segment.show(change)} ({segment.show(interval[0])} to {segment.show(interval[1])})"
    measured += f" against {reference}"
    measured += f" after {count(decision.pairs, 'interleaved pair')}"
    if screened.shared is not None:
        measured += f"; {screened.shared.series} series in {segment.unit or 'this unit'} changed with it"
    text = {
        "regressed": f"Slower: {measured}.",
        "improved": f"Faster: {measured}.",
        "ok": f"History suggested a regression; paired re-runs do not confirm it: {measured}.",
        "cannot_tell": f"Perhaps worse, too noisy for the budget: {measured}.",
    }[decision.status]
    return Finding(
        status=decision.status,
        explanation=text,
        effect=Effect(value=change, unit=f"median {measure} against {reference}"),
        interval=interval,
        p=min(1.0, screened.policy.trigger * decision.p),  # it both stood out and was confirmed
    )


def _judge_alone(screened: ScreenedSeries) -> Finding:
    segment, screening, policy = screened.segment, screened.screening, screened.policy
    measure = screened.what
    if screened.shared is not None:
        return _describe_shared(screened.shared, segment)
    if screening.moved:
        nights = f"{len(segment.nights)} of the {policy.min_nights + 1} nights that its own history needs"
        text = f"{measure} ran on another machine than before, {nights}; pairs can tell the program from it."
        return Finding(status="cannot_tell", explanation=text)
    for change in (screening.jump, screening.step):
        if change is not None:
            return _describe_change(segment, change, change.p, measure)
    # What began earlier says nothing of last nights that stand out, unless it is as bad.
    if screening.change is not None and (screening.change.shift > 0 or not screening.stands_out):
        return _describe_change(segment, screening.change, screened.change_p, measure)
    if screened.drift is not None and (screened.drifted is not None or not screening.stands_out):
        return _describe_drift(screened.drift, screened)
    recent = segment.values[-screening.nights :]
    before = segment.values[screening.level : -screening.nights][-policy.window :]
    shift, low, high = find_shift(recent, before)
    value, interval = segment.as_effect(shift), None
    if np.isfinite(low):
        interval = segment.as_interval(low, high)
    last = "The last night"
    if screening.nights > 1:
        last = f"The last {screening.nights} nights"
    measured = f"{last} of {measure}: {segment.show(value)} against the {len(before)} before"
    status: Status = "ok"
    text = f"{measured}, as chance does ({show_p(screening.p)})."
    if screening.stands_out:
        status = "cannot_tell"
        text = f"{measured} ({show_p(screening.p)}): confirm it by paired re-runs against night {screening.good_night}."
    effect = Effect(value=value, unit=f"{measure} against {count(len(before), 'earlier night')}")
    return Finding(status=status, explanation=text, effect=effect, interval=interval, p=screening.p)


def _describe_shared(shared: Shared, segment: Segment) -> Finding:
    """A change of all series of a machine, for which one of them stands."""
    all_series, value = f"all {shared.series} series in {segment.unit or 'this unit'}", segment.as_effect(shared.shift)
    text = f"Not one series but {all_series} on this machine changed together, in the median by {segment.show(value)} "
    text += f"since night {shared.since}"
    if shared.slope is not None:
        text += f", {segment.show(segment.as_effect(shared.slope))} a night"
    status: Status = "improved"
    if shared.shift > 0:
        status = "cannot_tell"
        text += f": the machine, or something that they share. Pairs of this one against night {shared.good_night} tell"
    return Finding(
        status=status,
        explanation=f"{text}.",
        effect=Effect(value=value, unit=f"median of {all_series} since night {shared.since}"),
    )


def _describe_drift(drift: Drift, screened: ScreenedSeries) -> Finding:
    segment, since = screened.segment, screened.segment.nights[drift.index]
    value, slope = segment.as_effect(drift.size), segment.as_effect(drift.slope)
    return Finding(
        status="cannot_tell" if screened.drifted is not None else "ok",
        explanation=f"{screened.what} drifts: {segment.show(slope)} a night since night {since}, "
        f"{segment.show(value)} until now; no night is its beginning.",
        effect=Effect(value=value, unit=f"{screened.series.measure} since night {since}"),
    )


def _describe_change(segment: Segment, change: Change, p: float, measure: str) -> Finding:
    night, value = segment.nights[change.index], segment.as_effect(change.shift)
    low, high = interval = segment.as_interval(change.low, change.high)
    lasted = count(len(segment.values) - change.index, "night")
    status: Status = "improved"
    word = "better"
    if change.shift > 0:
        status, word = "regressed", "worse"
    return Finding(
        status=status,
        explanation=f"{measure} is {word} since night {night}, for {lasted}: {segment.show(value)} "
        f"({segment.show(low)} to {segment.show(high)}).",
        effect=Effect(value=value, unit=f"{measure} since night {night}"),
        interval=interval,
        p=p,
    )
