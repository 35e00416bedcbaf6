"""Screening of a series: whether tonight needs paired re-runs, and against which night.

In: the series of a measure up to tonight. Out: the findings from its last nights, its latest lasting change and an
earlier regression, before any pairs. It is done once for each series and night; judging and planning re-runs share it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from nightjar_ci.formats.policy import HistoryPolicy
from nightjar_ci.formats.series import Series
from nightjar_ci.formats.verdict import Verdict
from nightjar_ci.judges.array import Array
from nightjar_ci.judges.history.change_points import LEAST, STRETCHES, TOGETHER, Change, find_all_changes
from nightjar_ci.judges.history.jump import REFERENCE, find_jump, find_least
from nightjar_ci.judges.history.last_nights import LONGEST, screen_last_nights
from nightjar_ci.judges.history.open_regression import OpenRegression, find_open_regression
from nightjar_ci.judges.history.rank_sum import find_shift
from nightjar_ci.judges.history.segment import Segment, current_segment
from nightjar_ci.judges.history.step import find_step

SINCE = 10  # nights back to the one to compare with, to include a step missed on its first nights


@dataclass(frozen=True, slots=True, kw_only=True)
class Screening:
    """The findings about tonight from a segment's history.

    Attributes:
        p: of the last nights standing out.
        nights: number of last nights that do.
        change: the latest lasting change, if within the window; its index is the segment's.
        jump: the last nights, if they lie far beyond all others.
        step: the last nights, if they lie above the earlier ones by more than noise.
        level: index of the first night of the current level in the segment.
        good_night: the night to compare tonight with.
        stands_out: whether pairs are worth running, judging by this segment alone.
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
        segment: the part to compare tonight with.
        screening: the findings from that part.
        earlier: the latest earlier verdict on this history, if regressed.
        open_regression: that regression's state tonight.
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
    def change_p(self) -> float:
        """The p of the latest lasting change, corrected for all nights and stretches; 1 without one."""
        if self.screening.change is None:
            return 1.0
        scanned = min(len(self.segment.values), 2 * self.policy.window) * len(STRETCHES)
        return min(1.0, self.screening.change.p * scanned)

    @property
    def is_open(self) -> bool:
        """Whether an earlier regression is still there, judging by the nights."""
        return self.open_regression is not None and not self.open_regression.gone

    @property
    def needs_rerun(self) -> bool:
        """Whether pairs can settle something; for an open regression, only that it is gone."""
        if self.open_regression is not None and self.is_open:
            return self.open_regression.perhaps_gone
        return self.screening.stands_out

    @property
    def rerun_p(self) -> float:
        if self.is_open:
            return self.policy.trigger
        return self.screening.p

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
        accepted: nights from which a new level is accepted.
        earlier: this history's verdict in the latest judged night before.

    Returns: None if tonight has no value, or its environment too few nights.
    """
    return screen_all([(series, policy, accepted, earlier)])[0]


def screen_all(
    histories: Sequence[tuple[Series, HistoryPolicy, Collection[str], Verdict | None]],
) -> list[ScreenedSeries | None]:
    """Screens many series like `screen_series`, together if of equal length."""
    segments = [current_segment(series, policy.scale, accepted) for series, policy, accepted, _ in histories]
    judged = [
        number
        for number, segment in enumerate(segments)
        if segment.nights and segment.nights[-1] == histories[number][0].nights[-1]
    ]
    screenings = screen_segments([segments[number] for number in judged], [histories[number][1] for number in judged])
    screened: list[ScreenedSeries | None] = [None] * len(histories)
    for number, screening in zip(judged, screenings, strict=True):
        if screening is not None:
            series, policy, _, earlier = histories[number]
            screened[number] = ScreenedSeries(
                series=series,
                policy=policy,
                segment=segments[number],
                screening=screening,
                earlier=earlier,
                open_regression=find_open_regression(segments[number], earlier, policy.window),
            )
    return screened


def screen_segment(segment: Segment, policy: HistoryPolicy) -> Screening | None:
    """The findings about tonight from a segment's history; None if it is too short."""
    return screen_segments([segment], [policy])[0]


def screen_segments(segments: Sequence[Segment], policies: Sequence[HistoryPolicy]) -> list[Screening | None]:
    """The findings about tonight from each segment's history, by its policy; None if it is too short."""
    chosen = [number for number, policy in enumerate(policies) if len(segments[number].values) > policy.min_nights]
    firsts = [max(0, len(segments[number].values) - 2 * policies[number].window) for number in chosen]
    all_changes = find_all_changes(
        [segments[number].values[first:] for number, first in zip(chosen, firsts, strict=True)]
    )
    levels: dict[int, _Level] = {}
    for number, first, changes in zip(chosen, firsts, all_changes, strict=True):
        levels[number] = _find_level(segments[number], policies[number], first, changes)
    endings = look_at_endings({number: (level.values, policies[number]) for number, level in levels.items()})
    screenings: list[Screening | None] = [None] * len(segments)
    for number, level in levels.items():
        screenings[number] = _conclude(segments[number], policies[number], level, endings[number])
    return screenings


@dataclass(frozen=True, slots=True, kw_only=True)
class _Level:
    """The current level of a segment.

    Attributes:
        start: index of its first night.
        values: of its nights.
        change: the latest lasting change, if within the window.
    """

    start: int
    values: Array
    change: Change | None


def _find_level(segment: Segment, policy: HistoryPolicy, first: int, changes: Sequence[Change]) -> _Level:
    count_nights = len(segment.values)
    recent = [
        replace(change, index=first + change.index) for change in changes if abs(change.shift) > np.log1p(policy.floor)
    ]
    settled = [change.index for change in recent if count_nights - change.index >= policy.min_nights + LONGEST]
    start = max(settled, default=0)  # nights before a lasting change do not count for this level
    change = next(iter(recent[-1:]), None)
    if change is not None and change.index < count_nights - policy.window:
        change = None  # by now it is the series' normal level
    return _Level(start=start, values=segment.values[start:], change=change)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The end of a level: p and number of its last nights, and the jump's number of nights and p, 0 for none."""

    p: float
    nights: int
    jump_nights: int
    jump_p: float


def look_at_endings(levels: Mapping[int, tuple[Array, HistoryPolicy]]) -> dict[int, Ending]:
    """The end of each level, computed together for equal length and policy.

    Args:
        levels: values and policy, by any number.
    """
    groups: dict[tuple[int, int, int, float, float], list[int]] = defaultdict(list)
    for number, (values, policy) in levels.items():
        least = find_least(policy, policy.scale)
        groups[len(values), policy.window, policy.min_nights, policy.floor, least].append(number)
    endings = {}
    for (_, window, min_nights, floor, least), places in groups.items():
        for start in range(0, len(places), TOGETHER):
            together = places[start : start + TOGETHER]
            values = np.stack([levels[number][0] for number in together])
            last = screen_last_nights(values, window, float(np.log1p(floor)), min_nights)
            jump = find_jump(values, least, float(np.log1p(floor)), min_nights)
            for row, number in enumerate(together):
                endings[number] = Ending(
                    p=float(last.p[row]),
                    nights=int(last.nights[row]),
                    jump_nights=int(jump.nights[row]),
                    jump_p=float(jump.p[row]),
                )
    return endings


def _conclude(segment: Segment, policy: HistoryPolicy, level: _Level, ending: Ending) -> Screening:
    """The findings about tonight from a level's end and its change."""
    count_nights, change, start = len(segment.values), level.change, level.start
    jump = _as_jump(ending, level, count_nights)
    suspicious = ending.p <= policy.trigger
    step = _find_step(level.values, start, policy) if suspicious else None
    good = count_nights - 1 - SINCE
    fresh = change is not None and change.shift > 0 and change.index > good - LEAST
    if change is not None and fresh:
        good = min(good, change.index - 1)
    if step is not None:
        good = min(good, step.index - 1)
    return Screening(
        p=ending.p,
        nights=ending.nights,
        change=change,
        jump=jump,
        step=step,
        level=start,
        good_night=segment.nights[max(0, good)],
        stands_out=suspicious or fresh or jump is not None,
    )


def _as_jump(ending: Ending, level: _Level, count_nights: int) -> Change | None:
    """The jump at the end of the current level, as a change of the segment."""
    nights = ending.jump_nights
    if not nights:
        return None
    shift, low, high = find_shift(level.values[-nights:], level.values[:-nights][-REFERENCE:])
    return Change(index=count_nights - nights, p=ending.jump_p, shift=shift, low=low, high=high)


def _find_step(level: Array, start: int, policy: HistoryPolicy) -> Change | None:
    """The step at the end of the current level, as a change of the segment."""
    step = find_step(level, float(np.log1p(policy.floor)), policy.min_nights)
    if step is None:
        return None
    return replace(step, index=start + step.index)
