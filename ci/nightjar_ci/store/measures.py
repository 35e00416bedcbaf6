"""The one number that stands for each measure of a run in its history.

In: the result or the profile of a run. Out: `Measure`s. A sample's number is its median after warm-up; a curve's is its
last value; a profile's are device times per step. If a value behind a number is not finite, the measure has no number:
a median could hide that value. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from nightjar_ci.formats.outcome import Outcome
from nightjar_ci.formats.profile import Profile
from nightjar_ci.formats.run_record import Better, Curve, RunRecord

MeasureKind = Literal["curve", "sample", "profile"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One number of a run; None where it is not finite."""

    kind: MeasureKind
    name: str
    unit: str
    better: Better
    value: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """What the store is given of a job: its outcome, and what it left."""

    outcome: Outcome
    record: RunRecord | None = None
    profile: Profile | None = None
    machine: str | None = None

    @property
    def measures(self) -> tuple[Measure, ...]:
        """The numbers for histories; none of a run that did not complete."""
        if not self.outcome.completed:
            return ()
        profile = summarize_profile(self.profile) if self.profile is not None else ()
        return (*(summarize(self.record) if self.record is not None else ()), *profile)


def summarize(record: RunRecord) -> Iterator[Measure]:
    """The measures of a run; of two of one kind and name the first counts."""
    seen: set[tuple[str, str]] = set()
    found: list[tuple[MeasureKind, str, str, Better, float]] = [
        *(("curve", one.name, one.unit, one.better, _last(one)) for one in record.curves if one.values),
        *(("sample", one.name, one.unit, one.better, one.level) for one in record.samples),
    ]
    for kind, name, unit, better, value in found:
        if (kind, name) not in seen:
            seen.add((kind, name))
            finite = value if math.isfinite(value) else None
            yield Measure(kind=kind, name=name, unit=unit, better=better, value=finite)


def _last(curve: Curve) -> float:
    return curve.values[-1] if all(map(math.isfinite, curve.values)) else math.nan


def summarize_profile(profile: Profile) -> Iterator[Measure]:
    """The measures of a capture: device time a step, whole and by category, and the shares with a Python line.

    Where the capture names no steps, times are of the whole capture.
    """
    steps = profile.steps[1] - profile.steps[0] + 1 if profile.steps else 1
    times = {"device_time": profile.device_time_ns}
    times |= {f"device_time.{name.replace(' ', '_')}": spent for name, spent in sorted(profile.categories.items())}
    for name, spent_ns in times.items():
        yield Measure(kind="profile", name=name, unit="s", better="lower", value=spent_ns / 1e9 / max(1, steps))
    shares = {"attributed": profile.direct_fraction + profile.inferred_fraction, "user": profile.user_fraction}
    for name, share in shares.items():
        value = share if math.isfinite(share) else None
        yield Measure(kind="profile", name=f"{name}_fraction", unit="fraction", better="higher", value=value)
