"""The part of a series to compare tonight with: the same machine's values since the last accepted change.

In: a series and the nights that were accepted. Out: the values of tonight's machine, turned so that higher is worse. A
pool of runners hands out another kind from night to night; each kind has its own history.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from nightjar_ci.formats.series import Series
from nightjar_ci.judges.array import Array


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Segment:
    """The measurements of one machine.

    Attributes:
        values: shape (N,), finite; logs if the scale is `log`; higher is worse.
        nights: their ids.
        accepted: the night of an accepted change, with which the segment begins, or None.
        elsewhere: number of omitted nights of other machines.
        sign: -1 if a higher measure is better.
    """

    values: Array
    nights: tuple[str, ...]
    accepted: str | None
    elsewhere: int
    sign: float
    scale: Literal["log", "linear"]

    def as_effect(self, shift: float) -> float:
        """A difference of `values` as a change of the measure: relative, or a difference on a linear scale."""
        if self.scale == "log":
            return math.expm1(self.sign * shift)
        return self.sign * shift

    def as_interval(self, low: float, high: float) -> tuple[float, float]:
        """An interval of differences as an interval of measure changes."""
        ends = self.as_effect(low), self.as_effect(high)
        return min(ends), max(ends)


def current_segment(series: Series, scale: Literal["log", "linear"], accepted: Collection[str] = ()) -> Segment:
    """The nights of a series that the latest one is compared with, and the latest one.

    Args:
        series: oldest night first; nights without a usable value are left out.
        scale: `log` leaves out values that are not positive.
        accepted: nights from which a new level is known and accepted.
    """
    usable = np.isfinite(series.values) & ((series.values > 0) | (scale == "linear"))
    here = np.array([key == series.environments[-1] for key in series.environments], dtype=bool)
    kept = np.flatnonzero(usable & here)
    start, since = _find_accepted([series.nights[index] for index in kept], accepted)
    kept = kept[start:]
    sign = 1.0 if series.better == "lower" else -1.0
    values = series.values[kept]
    if scale == "log":
        values = np.log(values)
    return Segment(
        values=sign * values,
        nights=tuple(series.nights[index] for index in kept),
        accepted=since,
        elsewhere=int((usable & ~here).sum()),
        sign=sign,
        scale=scale,
    )


def _find_accepted(nights: Sequence[str], accepted: Collection[str]) -> tuple[int, str | None]:
    """The index and id of the latest night with an accepted change; 0 and None if there is none.

    Nights of one minute are in the order of their start, not of their ids.
    """
    elsewhere = [night for night in accepted if night not in nights]  # the next night here has the new level
    for index in range(len(nights) - 1, -1, -1):
        before = nights[index - 1] if index else ""
        if nights[index] in accepted or any(before < night < nights[index] for night in elsewhere):
            return index, nights[index]
    return 0, None
