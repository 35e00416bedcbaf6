"""Which part of a series can be compared with tonight? What was measured in the same environment, since the last change
that was accepted.

In: a series and the nights that were accepted. Out: the values from the last break on, turned so that higher is worse.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

import numpy as np

from nightjar_ci.formats.series import Series
from nightjar_ci.judges.convergence.envelope import Array


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Segment:
    """The end of a series.

    Attributes:
        values: shape (N,), finite; logs where the scale is `log`; higher is worse.
        nights: their ids.
        began: why the segment begins where it does, or None where the series does.
        sign: -1 where a higher measure is better.
    """

    values: Array
    nights: tuple[str, ...]
    began: str | None
    sign: float
    scale: Literal["log", "linear"]

    def as_effect(self, shift: float) -> float:
        """A difference of `values` as a change of the measure: relative, or a difference where the scale is linear."""
        return math.expm1(self.sign * shift) if self.scale == "log" else self.sign * shift

    def as_interval(self, low: float, high: float) -> tuple[float, float]:
        """An interval of differences as one of changes of the measure."""
        ends = self.as_effect(low), self.as_effect(high)
        return min(ends), max(ends)


def current_segment(series: Series, scale: Literal["log", "linear"], accepted: Collection[str] = ()) -> Segment:
    """The part of a series since the last break.

    Args:
        series: oldest night first; nights without a usable value are left out.
        scale: `log` leaves out values that are not positive.
        accepted: nights from which on a new level is known and wanted.
    """
    usable = np.isfinite(series.values) & ((series.values > 0) | (scale == "linear"))
    kept = np.flatnonzero(usable)
    start, began = 0, None
    for place in range(len(kept) - 1, -1, -1):
        night, before = series.nights[kept[place]], kept[place - 1] if place else None
        if before is not None and series.environments[before] != series.environments[kept[place]]:
            start, began = place, f"the environment changed on night {night}"
            break
        if any((before is None or series.nights[before] < one) and one <= night for one in accepted):
            start, began = place, f"a change was accepted from night {night} on"
            break
    kept = kept[start:]
    sign = 1.0 if series.better == "lower" else -1.0
    values = series.values[kept]
    return Segment(
        values=sign * (np.log(values) if scale == "log" else values),
        nights=tuple(series.nights[place] for place in kept),
        began=began,
        sign=sign,
        scale=scale,
    )
