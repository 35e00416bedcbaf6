"""Screening of a series: whether tonight needs paired re-runs, and against which night.

In: the series of a measure up to tonight. Out: what its last nights, its latest lasting change and an earlier
regression say, before any pairs. It is done once for each series and night; judging and planning re-runs share it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np

from nightjar_ci.formats.policy import HistoryPolicy
from nightjar_ci.formats.series import Series
from nightjar_ci.formats.verdict import Verdict
from nightjar_ci.judges.convergence.envelope import Array
from nightjar_ci.judges.history.change_points import LEAST, Change, find_changes
from nightjar_ci.judges.history.jump import REFERENCE, find_jump, find_least
from nightjar_ci.judges.history.last_nights import LONGEST, screen_last_nights
from nightjar_ci.judges.history.open_regression import OpenRegression, find_open_regression
from nightjar_ci.judges.history.rank_test import find_shift
from nightjar_ci.judges.history.segment import Segment, current_segment
from nightjar_ci.judges.history.step import find_step

SINCE = 10  # nights back to the one that tonight is compared with: so a step that was missed on its first nights counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Screening:
    """What the history of a segment says about tonight.

    Attributes:
        p: of the last nights standing out.
        nights: how many of the last nights do.
        change: the latest lasting change, where it is within the window; its index is the segment's.
        jump: the last nights, where they lie far beyond all others.
        step: the last nights, where they lie above those before by more than noise does.
        level: index of the first night of the current level in the segment.
        good_night: the night to compare tonight with.
        stands_out: whether pairs are worth running, as far as this segment alone tells.
    """

    p: float
    nights: int
    change: Change | None
    jump: Change | None
    step: Change | None
    level: int
    good_night: str
    stands_out: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ScreenedSeries:
    """A series of tonight with its screening.

    Attributes:
        series: up to tonight.
        policy: of its history.
        segment: the part that tonight is compared with.
        screening: what that part says.
        earlier: the latest earlier verdict on this history, where it was regressed.
        open_regression: how that regression does tonight.
    """

    series: Series
    policy: HistoryPolicy
    segment: Segment
    screening: Screening
    earlier: Verdict | None
    open_regression: OpenRegression | None

    @property
    def level(self) -> Array:
        """The values of the current level, tonight included."""
        return self.segment.values[self.screening.level :]

    @property
    def is_open(self) -> bool:
        """Whether an earlier regression is still there, as far as the nights tell."""
        return self.open_regression is not None and not self.open_regression.gone

    @property
    def needs_rerun(self) -> bool:
        """Whether pairs have something to settle; of an open regression they can only say that it is gone."""
        if self.open_regression is not None and self.is_open:
            return self.open_regression.perhaps_gone
        return self.screening.stands_out

    @property
    def rerun_p(self) -> float:
        """How surprising tonight is."""
        return self.policy.trigger if self.is_open else self.screening.p

    @property
    def good_night(self) -> str:
        """The night to compare tonight with."""
        if self.open_regression is not None and self.is_open:
            return self.open_regression.good_night
        return self.screening.good_night


def screen_series(
    series: Series, policy: HistoryPolicy, accepted: Collection[str] = (), earlier: Verdict | None = None
) -> ScreenedSeries | None:
    """Screens the last night of a series.

    Args:
        series: up to tonight, tonight included.
        policy: trigger, window and the numbers of the pairs.
        accepted: nights from which on a new level is wanted.
        earlier: the verdict on this history of the latest night before that was judged.

    Returns: None where tonight has no value, or its environment too few nights.
    """
    segment = current_segment(series, policy.scale, accepted)
    if not segment.nights or segment.nights[-1] != series.nights[-1]:
        return None
    screening = screen_segment(segment, policy)
    if screening is None:
        return None
    return ScreenedSeries(
        series=series,
        policy=policy,
        segment=segment,
        screening=screening,
        earlier=earlier,
        open_regression=find_open_regression(segment, earlier, policy.window),
    )


def screen_segment(segment: Segment, policy: HistoryPolicy) -> Screening | None:
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
    settled = [change.index for change in recent if count_nights - change.index >= policy.min_nights + LONGEST]
    start = max(settled, default=0)  # nights before a lasting change say nothing about this level
    level = segment.values[start:]
    last_nights = screen_last_nights(level, policy.window, np.log1p(policy.floor), policy.min_nights)
    jump = _find_jump(segment, level, policy)
    suspicious = float(last_nights.p) <= policy.trigger
    step = _find_step(level, start, policy) if suspicious else None
    change = next(iter(recent[-1:]), None)
    if change is not None and change.index < count_nights - policy.window:
        change = None  # by now it is what the series is
    good = count_nights - 1 - SINCE
    fresh = change is not None and change.shift > 0 and change.index > good - LEAST
    if change is not None and fresh:
        good = min(good, change.index - 1)
    if step is not None:
        good = min(good, step.index - 1)
    return Screening(
        p=float(last_nights.p),
        nights=int(last_nights.nights),
        change=change,
        jump=jump,
        step=step,
        level=start,
        good_night=segment.nights[max(0, good)],
        stands_out=suspicious or fresh or jump is not None,
    )


def _find_jump(segment: Segment, level: Array, policy: HistoryPolicy) -> Change | None:
    """The jump at the end of the current level, as a change of the segment."""
    jump = find_jump(level, find_least(policy, segment.scale), float(np.log1p(policy.floor)), policy.min_nights)
    if not (nights := int(jump.nights)):
        return None
    shift, low, high = find_shift(level[-nights:], level[:-nights][-REFERENCE:])
    return Change(index=len(segment.values) - nights, p=float(jump.p), shift=shift, low=low, high=high)


def _find_step(level: Array, start: int, policy: HistoryPolicy) -> Change | None:
    """The step at the end of the current level, as a change of the segment."""
    step = find_step(level, float(np.log1p(policy.floor)), policy.min_nights)
    return None if step is None else replace(step, index=start + step.index)
