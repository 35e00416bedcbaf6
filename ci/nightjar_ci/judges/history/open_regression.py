"""The check of an open regression: the nights since it began, compared with those before it.

In: tonight's segment, and the verdict of the latest judged night. Out: the part of the regression that is left. It
stays open until its level has surely returned; a few lucky nights do not close it. docs/statistics.md derives the error
rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nightjar_ci.formats.verdict import Verdict
from nightjar_ci.judges.history.rank_sum import find_shift
from nightjar_ci.judges.history.segment import Segment

LOOKS = (2, 5, 10, 20)  # last nights; a large regression closes after two, a small one after twenty
MISS = 0.002  # of each look's interval: half of it is the rate of closing a regression of which half remains
LEFT = 0.5  # of the regression; below it the regression is gone


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRegression:
    """A regression that was found on an earlier night.

    Attributes:
        size: its size when found, on the segment's scale.
        shift: difference of the last nights from the nights up to the good one.
        gone: the last nights surely show less than half of it.
        perhaps_gone: the last two nights look like it: pairs would decide.
    """

    since: str
    good_night: str
    size: float
    shift: float
    gone: bool
    perhaps_gone: bool


def find_open_regression(segment: Segment, earlier: Verdict | None) -> OpenRegression | None:
    """An earlier regression's state tonight.

    Args:
        earlier: this history's verdict in the latest night before.

    Returns: None if there was no regression, or it was accepted.
    """
    if earlier is None or earlier.status != "regressed" or earlier.effect is None:
        return None
    since, good_night = earlier.policy.get("since"), earlier.policy.get("good_night")
    if not isinstance(since, str) or not isinstance(good_night, str):
        return None
    size = abs(segment.as_shift(earlier.effect.value))
    if since in segment.nights and good_night in segment.elsewhere:  # pairs showed it, and only pairs can end it
        return OpenRegression(since=since, good_night=good_night, size=size, shift=size, gone=False, perhaps_gone=True)
    if good_night not in segment.nights:
        return None
    after_good = segment.nights.index(good_night) + 1
    before = segment.values[max(0, after_good - segment.policy.window) : after_good]
    after = segment.values[find_night(segment.nights, since) :]
    if len(after) < LOOKS[0] or size == 0:
        return None
    gone = any(
        find_shift(after[-nights:], before, miss=MISS)[2] < LEFT * size for nights in LOOKS if nights <= len(after)
    )
    shift, last = (find_shift(after[-nights:], before)[0] for nights in (LOOKS[1], LOOKS[0]))
    return OpenRegression(
        since=since, good_night=good_night, size=size, shift=shift, gone=gone, perhaps_gone=last < LEFT * size
    )


def find_night(nights: Sequence[str], since: str) -> int:
    """The index of a night, or of the first later one; nights of one minute are in the order of their start."""
    if since in nights:
        return nights.index(since)
    return next((index for index, night in enumerate(nights) if night > since), len(nights))
