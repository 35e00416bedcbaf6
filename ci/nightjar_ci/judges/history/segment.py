"""The part of a series to compare tonight with: the same machine's values since the last accepted change.

In: a series, its policy and the nights that were accepted. Out: the values of tonight's machine, turned so that higher
is worse, on the series' own scale. A pool of runners hands out another kind from night to night; each kind has its own
history.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from nightjar_ci.formats.policy import HistoryPolicy
from nightjar_ci.formats.series import Series
from nightjar_ci.judges.array import Array
from nightjar_ci.judges.finding import count, percent
from nightjar_ci.judges.history.noise import robust_sd

_LARGEST = 700.0  # logarithm of the largest change that is told: e^710 is infinite


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Segment:
    """The measurements of one machine.

    Attributes:
        values: shape (N,), finite; higher is worse.
        accepted: the night of an accepted change, with which the segment begins, or None.
        elsewhere: nights of other machines, each with its distance above its own machine's median; NaN if they are few.
        sign: -1 if a higher measure is better.
        size: None if the values are logs; otherwise the difference of the measure that is 1 in `values`.
    """

    policy: HistoryPolicy
    values: Array
    nights: tuple[str, ...]
    accepted: str | None
    elsewhere: dict[str, float]
    sign: float
    size: float | None
    unit: str

    @property
    def floor(self) -> float:
        return self._on_scale(self.policy.floor)

    @property
    def jump(self) -> float:
        """The least distance of a jump's nights above the others, on the scale of `values`."""
        return self._on_scale(self.policy.jump)

    def _on_scale(self, change: float) -> float:
        if self.size is None:
            return math.log1p(change)
        return change

    def as_effect(self, shift: float) -> float:
        """A difference of `values` as a change of the measure: relative, or a difference if `size` is given."""
        if self.size is None:
            return math.expm1(min(self.sign * shift, _LARGEST))
        return self.sign * shift * self.size

    def as_shift(self, effect: float) -> float:
        if self.size is None:
            return self.sign * math.log1p(effect)
        return self.sign * effect / self.size

    def show(self, effect: float) -> str:
        if self.size is None:
            return percent(effect)
        return f"{effect:+.3g} {self.unit}".rstrip()

    def describe(self) -> Iterator[str]:
        if self.accepted is not None:
            yield f"compared since night {self.accepted}, when a change was accepted"
        if self.elsewhere:
            same = count(len(self.nights), "night")
            yield f"compared with {same} on the same machine; {len(self.elsewhere)} on others have their own history"

    def as_interval(self, low: float, high: float) -> tuple[float, float]:
        ends = self.as_effect(low), self.as_effect(high)
        return min(ends), max(ends)


def current_segment(series: Series, policy: HistoryPolicy, accepted: Collection[str] = ()) -> Segment:
    """The nights of a series that the latest one is compared with, and the latest one.

    A measure has its own scale: ratios if all its values are positive; otherwise differences, relative to its usual
    size, or as they are if the policy says `linear`.

    Args:
        series: oldest night first; nights without a finite value are left out.
        accepted: nights from which a new level is known and accepted.
    """
    usable = np.isfinite(series.values)
    here = np.array([key == series.environments[-1] for key in series.environments], dtype=bool)
    kept = np.flatnonzero(usable & here)
    start, since = _find_accepted([series.nights[index] for index in kept], accepted)
    sign = {"lower": 1.0, "higher": -1.0}[series.better]
    size = _find_size(series.values[kept[start:]], policy)
    segment = Segment(
        policy=policy,
        values=sign * _rescale(series.values[kept[start:]], size),
        nights=tuple(series.nights[index] for index in kept[start:]),
        accepted=since,
        elsewhere={},
        sign=sign,
        size=size,
        unit=series.unit,
    )
    elsewhere = np.flatnonzero(usable & ~here).tolist()
    return replace(segment, elsewhere=_find_distances(series, elsewhere, segment))


def _find_size(values: Array, policy: HistoryPolicy) -> float | None:
    """The difference that is 1 on the scale of the values; None for logs."""
    if policy.scale == "linear" or not values.any():
        return 1.0
    if (values > 0).all():
        return None
    return float(np.median(np.abs(values[values != 0])))


def _rescale(values: Array, size: float | None) -> Array:
    if size is None:
        return np.log(values, out=np.full(len(values), np.nan), where=values > 0)
    return values / size


def _find_distances(series: Series, nights: Sequence[int], segment: Segment) -> dict[str, float]:
    """Of the nights of other machines, in their order; NaN for those before an accepted change, too."""
    distances = {series.nights[index]: math.nan for index in nights}
    for machine in {series.environments[index] for index in nights}:
        known = [index for index in nights if series.environments[index] == machine]
        known = [index for index in known if series.nights[index] >= (segment.accepted or "")]
        if len(known) > segment.policy.min_nights:
            values = segment.sign * _rescale(series.values[known], segment.size)
            louder = max(float(robust_sd(values)) / max(float(robust_sd(segment.values)), 1e-9), 1.0)
            away = (values - np.median(values[-segment.policy.window :])) / louder
            distances |= zip([series.nights[index] for index in known], away.tolist(), strict=True)
    return distances


def _find_accepted(nights: Sequence[str], accepted: Collection[str]) -> tuple[int, str | None]:
    """The index and id of the latest night with an accepted change; 0 and None if there is none.

    Nights of one minute are in the order of their start, not of their ids.
    """
    elsewhere = [night for night in accepted if night not in nights]  # the next night here has the new level
    for index in range(len(nights) - 1, -1, -1):
        before = ("", *nights)[index]
        if nights[index] in accepted or any(before < night < nights[index] for night in elsewhere):
            return index, nights[index]
    return 0, None
