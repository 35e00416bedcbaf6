"""Screening of a series: whether tonight needs paired re-runs, and against which night.

In: the series of a measure up to tonight. Out: the findings from its last nights, its latest lasting change and an
earlier regression, before any pairs. It is done once for each series and night; judging and planning re-runs share it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from nightjar_ci.formats.policy import HistoryPolicy
from nightjar_ci.formats.series import Series
from nightjar_ci.formats.verdict import Verdict
from nightjar_ci.judges.array import Array
from nightjar_ci.judges.history.change_points import LEAST, STRETCHES, TOGETHER, Change, find_all_changes
from nightjar_ci.judges.history.drift import Drift
from nightjar_ci.judges.history.last_nights import LONGEST, REFERENCE, LastNights, find_jump, screen_last_nights
from nightjar_ci.judges.history.open_regression import LEFT, OpenRegression, find_night, find_open_regression
from nightjar_ci.judges.history.rank_sum import find_shift
from nightjar_ci.judges.history.segment import Segment, current_segment
from nightjar_ci.judges.history.shared import Shared, take_explained
from nightjar_ci.judges.history.step import find_step

FEW = 5  # nights, by which a change that was undone is known before another change is found
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
        moved: the machine is new to the series, and its nights there are too few.
    """

    p: float
    nights: int
    change: Change | None
    jump: Change | None
    step: Change | None
    level: int
    good_night: str
    stands_out: bool
    moved: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ScreenedSeries:
    """A series of tonight with its screening.

    Attributes:
        segment: the part to compare tonight with, less what it shares with others and less its drift.
        earlier: the latest earlier verdict on this history, if regressed.
        open_regression: that regression's state tonight.
        drift: the slope that was taken out of the segment.
        shared: the change that it shares with all series of its machine, for which it stands.
    """

    series: Series
    segment: Segment
    screening: Screening
    earlier: Verdict | None
    open_regression: OpenRegression | None
    drift: Drift | None = None
    shared: Shared | None = None

    @property
    def policy(self) -> HistoryPolicy:
        return self.segment.policy

    @property
    def level(self) -> Array:
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
        return self.open_regression is not None and not self.open_regression.gone

    @property
    def is_worse(self) -> bool:
        """Whether the history alone shows a regression, before the night is judged as a whole."""
        jump, step, change = self.screening.jump, self.screening.step, self.screening.change
        return self.is_open or jump is not None or step is not None or (change is not None and change.shift > 0)

    @property
    def drifted(self) -> Drift | None:
        if self.drift is None or (self.drift.size <= self.segment.jump and self.earlier is None):
            return None
        return self.drift

    @property
    def what(self) -> str:
        if self.series.of_worst:
            return f"{self.series.measure} of the worst of its runs"
        return self.series.measure

    @property
    def needs_rerun(self) -> bool:
        """Whether pairs can settle something; for an open regression, only that it is gone."""
        if self.series.of_worst:
            return False  # they run one seed, which may be another one
        if self.open_regression is not None and self.is_open:
            return self.open_regression.perhaps_gone
        return self.screening.stands_out or self.shared is not None or self.drifted is not None

    @property
    def rerun_p(self) -> float:
        if self.is_open or self.shared is not None:
            return self.policy.trigger
        return self.screening.p

    @property
    def good_night(self) -> str:
        if self.open_regression is not None and self.is_open:
            return self.open_regression.good_night
        if self.shared is not None:
            return self.shared.good_night
        if self.drifted is not None:
            return self.segment.nights[max(0, self.drifted.index - 1)]
        return self.screening.good_night


def screen_all(
    histories: Sequence[tuple[Series, HistoryPolicy, Collection[str], Verdict | None]],
) -> list[ScreenedSeries | None]:
    """Screens the last night of many series, together if of equal length.

    Args:
        histories: each a series up to tonight, tonight included; its policy; the nights from which a new level is
            accepted; and this history's verdict in the latest judged night before, if regressed.

    Returns: None for a series without a value tonight, or with too few nights.
    """
    segments = [current_segment(series, policy, accepted) for series, policy, accepted, _ in histories]
    machines = [(series.environments[-1:], series.unit) for series, *_ in histories]
    opened = {number: earlier for number, (*_, earlier) in enumerate(histories) if earlier is not None}
    whole = [number for number, earlier in opened.items() if "shared" in earlier.policy]
    shared, drifts = take_explained(segments, machines, whole, opened)
    judged = [
        number
        for number, segment in enumerate(segments)
        if segment.nights and segment.nights[-1] == histories[number][0].nights[-1]
    ]
    screened: list[ScreenedSeries | None] = [None] * len(histories)
    for number, screening in zip(judged, screen_segments([segments[number] for number in judged]), strict=True):
        if screening is not None:
            series, _, _, earlier = histories[number]
            regression = None
            if number not in drifts or number in whole:
                regression = find_open_regression(segments[number], earlier)
            screened[number] = ScreenedSeries(
                series=series,
                segment=segments[number],
                screening=screening,
                earlier=earlier,
                open_regression=regression,
                drift=drifts.get(number),
                shared=shared.get(number),
            )
    return screened


def screen_segments(segments: Sequence[Segment]) -> list[Screening | None]:
    """The findings about tonight from each segment's history; None if it is too short."""
    screenings = [_wait_for_nights(segment) for segment in segments]
    chosen = [number for number, segment in enumerate(segments) if len(segment.values) > segment.policy.min_nights]
    firsts = [max(0, len(segments[number].values) - 2 * segments[number].policy.window) for number in chosen]
    all_changes = find_all_changes(
        [segments[number].values[first:] for number, first in zip(chosen, firsts, strict=True)]
    )
    levels = {
        number: _find_level(segments[number], first, changes)
        for number, first, changes in zip(chosen, firsts, all_changes, strict=True)
    }
    ends = _look_at_ends({number: segments[number].values[start:] for number, (start, _) in levels.items()}, segments)
    for number, level in levels.items():
        screenings[number] = _conclude(segments[number], *level, *ends[number])
    return screenings


def _wait_for_nights(segment: Segment) -> Screening | None:
    """The screening of a series that moved to another machine, where its few nights tell nothing; None for others."""
    least = segment.policy.min_nights
    if segment.accepted is not None or len(segment.nights) > least or len(segment.elsewhere) < least:
        return None
    return Screening(
        p=segment.policy.trigger,
        nights=len(segment.nights),
        change=None,
        jump=None,
        step=None,
        level=0,
        good_night=next(reversed(segment.elsewhere)),
        stands_out=True,
        moved=True,
    )


def _find_level(segment: Segment, first: int, changes: Sequence[Change]) -> tuple[int, Change | None]:
    """The index at which the current level begins, and the latest lasting change, if within the window."""
    count_nights, policy = len(segment.values), segment.policy
    recent = [replace(change, index=first + change.index) for change in changes if abs(change.shift) > segment.floor]
    settled = [change.index for change in recent if count_nights - change.index >= policy.min_nights + LONGEST]
    start = max(settled, default=0)  # nights before a lasting change do not count for this level
    change = next(iter(recent[-1:]), None)
    if change is not None and (change.index < count_nights - policy.window or change.low <= 0 <= change.high):
        change = None  # by now it is the series' normal level; or its own interval does not tell its sign
    if change is not None:  # a later change, too young to be found, may have undone it
        usual = np.median(segment.values[: change.index][-policy.window :])
        ends = (segment.values[change.index :][:LONGEST], segment.values[-FEW:])
        was, now = (np.median(part) - usual for part in ends)
        if now * np.sign(was) < LEFT * abs(was):
            change = None
    return start, change


def _look_at_ends(levels: Mapping[int, Array], segments: Sequence[Segment]) -> dict[int, tuple[LastNights, LastNights]]:
    """The last nights and the jump at the end of each level, computed together for equal length and policy."""
    groups: dict[tuple[int, int, int, float, float], list[int]] = defaultdict(list)
    for number, level in levels.items():
        of = segments[number]
        groups[len(level), of.policy.window, of.policy.min_nights, of.floor, of.jump].append(number)
    ends = {}
    for (_, window, min_nights, floor, least), numbers in groups.items():
        for start in range(0, len(numbers), TOGETHER):
            together = numbers[start : start + TOGETHER]
            values = np.stack([levels[number] for number in together])
            last = screen_last_nights(values, window, floor, min_nights)
            jump = find_jump(values, least, floor, min_nights)
            for row, number in enumerate(together):
                ends[number] = last.of(row), jump.of(row)
    return ends


def _conclude(segment: Segment, start: int, change: Change | None, last: LastNights, end: LastNights) -> Screening:
    count_nights, level = len(segment.values), segment.values[start:]
    jump = _as_jump(end, level, start)
    suspicious = bool(last.p <= segment.policy.trigger)
    if jump is None and suspicious and segment.elsewhere:
        jump = _find_jump_in_pool(segment, start)
    step = find_step(level, segment.floor, segment.policy.min_nights) if suspicious else None
    good = count_nights - 1 - SINCE
    fresh = change is not None and change.shift > 0 and change.index > good - LEAST
    if change is not None and fresh:
        good = min(good, change.index - 1)
    if step is not None:
        step = replace(step, index=start + step.index)
        good = min(good, step.index - 1)
    return Screening(
        p=float(last.p),
        nights=int(last.nights),
        change=change,
        jump=jump,
        step=step,
        level=start,
        good_night=segment.nights[max(0, good)],
        stands_out=suspicious or fresh or jump is not None,
    )


def _find_jump_in_pool(segment: Segment, start: int) -> Change | None:
    """A jump of nights on several machines, each by its distance above the usual value of its own."""
    level = segment.values[start:]
    own = zip(segment.nights[start:], level - np.median(level), strict=True)
    known = {night: away for night, away in segment.elsewhere.items() if math.isfinite(away)}
    nights, values = zip(*sorted([*known.items(), *own]), strict=True)
    together = np.array(values)
    jump = _as_jump(find_jump(together, segment.jump, segment.floor, segment.policy.min_nights), together)
    if jump is None:
        return None
    return replace(jump, index=find_night(segment.nights, nights[jump.index]))


def _as_jump(end: LastNights, values: Array, start: int = 0) -> Change | None:
    nights = int(end.nights)
    if not nights:
        return None
    shift, low, high = find_shift(values[-nights:], values[:-nights][-REFERENCE:])
    return Change(index=start + len(values) - nights, p=float(end.p), shift=shift, low=low, high=high)
