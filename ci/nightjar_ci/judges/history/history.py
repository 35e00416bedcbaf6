"""The judge of histories: whether a measure became worse, confirmed by paired re-runs.

In: the series of a measure up to tonight, and pairs of re-runs if they were made. Out: one verdict.

If the last nights stand out, the verdict asks for pairs, and the pairs decide. Without pairs, the history alone shows a
jump far beyond its noise after three nights, a step of the size of the noise after eight or ten, and a smaller change
once it has lasted. A regression stands until its level returns (see `open_regression`). docs/statistics.md derives the
error rates of each.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from nightjar_ci.formats.policy import HistoryPolicy
from nightjar_ci.formats.series import Series
from nightjar_ci.formats.verdict import Effect, Status, Verdict
from nightjar_ci.judges.finding import Finding, count, percent, show_p
from nightjar_ci.judges.history.change_points import Change
from nightjar_ci.judges.history.open_regression import LEFT, OpenRegression
from nightjar_ci.judges.history.rank_sum import find_shift
from nightjar_ci.judges.history.screening import ScreenedSeries, screen_series
from nightjar_ci.judges.history.segment import Segment
from nightjar_ci.judges.performance.performance import Pair, log_ratio
from nightjar_ci.judges.performance.sequential import Decision, decide


@dataclass(frozen=True, slots=True, kw_only=True)
class Rerun:
    """Interleaved pairs of tonight's environment and an earlier night's."""

    reference: str
    pairs: Sequence[Pair]


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
        accepted: nights from which a new level is accepted.
        rerun: the pairs, if the series was re-run.
        earlier: this history's verdict in the latest judged night before.

    Returns: None if tonight has no value, or its environment too few nights.
    """
    screened = screen_series(series, policy, accepted, earlier)
    if screened is None:
        return None
    return judge_screened(screened, rerun)


def judge_screened(screened: ScreenedSeries, rerun: Rerun | None = None) -> Verdict:
    """Judges the last night of a series that was screened.

    Args:
        rerun: the pairs, if the series was re-run.
    """
    series, policy, segment, screening = screened.series, screened.policy, screened.segment, screened.screening
    measure = series.measure
    decision = None
    if rerun is not None and screened.needs_rerun:  # else the pairs are for another measure of the cell
        decision = decide(_ratios(rerun, measure), policy)
    pairs: Sequence[Pair] = ()
    quoted = policy.numbers()
    if decision is not None and rerun is not None:
        pairs = rerun.pairs
        quoted["reference"] = rerun.reference
    origin = _origin(screened, paired=decision is not None)
    if _is_still_open(screened.open_regression, decision):
        finding = _describe_open(screened, measure)
    elif decision is not None and rerun is not None:
        finding = _describe_pairs(segment, decision, rerun.reference, origin["good_night"], policy, measure)
    else:
        finding = _judge_alone(screened)
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
        details=tuple(_describe_segment(segment)),
    )


def _describe_segment(segment: Segment) -> Iterator[str]:
    """The nights that tonight is compared with, if not all of the series."""
    if segment.accepted is not None:
        yield f"compared since night {segment.accepted}, when a change was accepted"
    if segment.elsewhere:
        same = count(len(segment.nights), "night")
        yield f"compared with {same} on the same machine; {segment.elsewhere} on others are left out"


def _ratios(rerun: Rerun, measure: str) -> list[float]:
    return [ratio for pair in rerun.pairs if (ratio := log_ratio(pair, measure)) is not None]


def _origin(screened: ScreenedSeries, *, paired: bool) -> dict[str, str]:
    """The first night of a regression, and the last night known to be good."""
    segment, screening = screened.segment, screened.screening
    if screened.open_regression is not None and screened.is_open:
        return {"since": screened.open_regression.since, "good_night": screened.open_regression.good_night}
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


def _describe_open(screened: ScreenedSeries, measure: str) -> Finding:
    """An open regression; it keeps its effect and has no p: it was decided before."""
    regression, earlier = screened.open_regression, screened.earlier
    assert regression is not None
    assert earlier is not None
    now = screened.segment.as_effect(regression.shift)
    return Finding(
        status="regressed",
        explanation=f"{measure} is worse since night {regression.since}, and stays so: the last nights {percent(now)} "
        f"against those up to {regression.good_night}.",
        effect=earlier.effect,
        interval=earlier.interval,
    )


def _describe_pairs(
    segment: Segment, decision: Decision, reference: str, good_night: str, policy: HistoryPolicy, measure: str
) -> Finding:
    """The verdict from the pairs."""
    change = decision.mean
    if segment.scale == "log":
        change = segment.as_effect(decision.mean)
    interval = segment.as_interval(decision.low, decision.high)
    measured = f"{measure} {percent(change)} ({percent(interval[0])} to {percent(interval[1])}) against {reference}"
    measured += f" of night {good_night} after {count(decision.pairs, 'interleaved pair')}"
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
        p=min(1.0, policy.trigger * decision.p),  # it both stood out and was confirmed
    )


def _judge_alone(screened: ScreenedSeries) -> Finding:
    """The verdict from history alone."""
    segment, screening, policy = screened.segment, screened.screening, screened.policy
    measure = screened.series.measure
    if screening.jump is not None:
        return _describe_change(segment, screening.jump, screening.jump.p, measure)
    if screening.step is not None:
        return _describe_change(segment, screening.step, screening.step.p, measure)
    if screening.change is not None:
        return _describe_change(segment, screening.change, screened.change_p, measure)
    recent, before = segment.values[-screening.nights :], segment.values[: -screening.nights][-policy.window :]
    shift, low, high = find_shift(recent, before)
    value, interval = segment.as_effect(shift), None
    if np.isfinite(low):
        interval = segment.as_interval(low, high)
    last = "The last night"
    if screening.nights > 1:
        last = f"The last {screening.nights} nights"
    measured = f"{last} of {measure}: {percent(value)} against the {len(before)} before"
    status: Status = "ok"
    text = f"{measured}, as chance does ({show_p(screening.p)})."
    if screening.stands_out:
        status = "cannot_tell"
        text = f"{measured} ({show_p(screening.p)}): confirm it by paired re-runs against night {screening.good_night}."
    effect = Effect(value=value, unit=f"{measure} against {count(len(before), 'earlier night')}")
    return Finding(status=status, explanation=text, effect=effect, interval=interval, p=screening.p)


def _describe_change(segment: Segment, change: Change, p: float, measure: str) -> Finding:
    night, value = segment.nights[change.index], segment.as_effect(change.shift)
    interval = segment.as_interval(change.low, change.high)
    lasted = len(segment.values) - change.index
    status: Status = "improved"
    word = "better"
    if change.shift > 0:
        status, word = "regressed", "worse"
    return Finding(
        status=status,
        explanation=f"{measure} is {word} since night {night}, for "
        f"{count(lasted, 'night')}: {percent(value)} ({percent(interval[0])} to {percent(interval[1])}).",
        effect=Effect(value=value, unit=f"{measure} since night {night}"),
        interval=interval,
        p=p,
    )
