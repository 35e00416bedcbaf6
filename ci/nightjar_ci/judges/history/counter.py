"""The judge of counters: measures that a program determines and no machine disturbs, such as calls or instructions.

In: the series of a measure up to tonight. Out: a verdict, if most nights equal the one before; None if not, since then
noise has to be judged (`history`). One night is enough: counts do not change by chance.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from pydantic import JsonValue

from nightjar_ci.formats.policy import HistoryPolicy
from nightjar_ci.formats.series import Series
from nightjar_ci.formats.verdict import Effect, Status, Verdict
from nightjar_ci.judges.finding import percent
from nightjar_ci.judges.history.segment import Segment, current_segment

REFERENCE = 10  # nights that show whether the measure is a counter
LEAST = 3  # of them
EQUAL = 0.1  # of the floor: nights that differ by no more are equal
SHARE = 0.6  # of the nights that equal the one before; the others are changes


def judge_counter(series: Series, policy: HistoryPolicy, accepted: Collection[str] = ()) -> Verdict | None:
    """Judges the last night of a counter against the best level that two nights in a row had.

    So small changes that add up are found too, and a regression stays until it is gone or accepted, or has lasted for
    the policy's window.

    Args:
        policy: its `floor` is the largest difference that is not a change.

    Returns: None if the policy calls it no counter, tonight has no value, or the nights before are noisy.
    """
    if not policy.deterministic:
        return None
    segment = current_segment(series, policy, accepted)
    if not segment.nights or segment.nights[-1] != series.nights[-1]:
        return None
    before, floor = segment.values[:-1][-policy.window :], segment.floor
    equal = np.abs(np.diff(before)) <= EQUAL * floor
    if len(before) < LEAST or np.mean(equal[-REFERENCE:]) < SHARE:
        return None
    best = np.maximum(before[1:], before[:-1])[equal].min()
    good = len(segment.nights) - len(before) - 1 + int(np.flatnonzero(before <= best + floor)[-1])
    return _describe(series, policy, segment, float(best), good)


def _describe(series: Series, policy: HistoryPolicy, segment: Segment, best: float, good: int) -> Verdict:
    """The verdict of tonight's value against the level of the latest good night."""
    tonight, last, floor = segment.values[-1], segment.values[-2], segment.floor
    quoted: dict[str, JsonValue] = {"floor": policy.floor, "deterministic": True}
    if segment.size is not None:
        quoted["scale"] = "linear"  # of the effect
    status: Status = "ok"
    change = segment.as_effect(float(tonight - best))
    night = segment.nights[good]
    text = f"{series.measure} is as in night {night}, to {percent(policy.floor)[1:]}."
    if tonight > best + floor:
        status, since = "regressed", segment.nights[good + 1]
        text = f"{series.measure} is worse since night {since}: {segment.show(change)} against night {night}."
        quoted |= {"since": since, "good_night": night}
    elif tonight < last - floor:
        status, night = "improved", segment.nights[-2]
        change = segment.as_effect(float(tonight - last))
        text = f"{series.measure} is better: {segment.show(change)} against night {night}."
    return Verdict(
        series=series.name,
        judge="history",
        status=status,
        effect=Effect(value=change, unit=f"{series.measure} against night {night}"),
        n=len(segment.nights),
        policy=quoted,
        runs=segment.nights[-1:],
        explanation=text,
        details=("counted, not timed: one night is enough", *segment.describe()),
    )
