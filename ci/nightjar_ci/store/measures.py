"""The measures of a run: one number each for the history.

In: the result or the profile of a run. Out: `Measure`s. A sample's number is its median after warm-up; a curve's is its
last value; a profile's are device times per step. If any of its values is not finite, the measure has no number: a
median could hide that value. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from nightjar_ci.formats.outcome import Outcome
from nightjar_ci.formats.profile import Profile
from nightjar_ci.formats.run_record import Better, Curve, RunRecord, Sample

MeasureKind = Literal["curve", "sample", "profile"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One number of a run; None if it is not finite."""

    kind: MeasureKind
    name: str
    unit: str
    better: Better
    value: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One value of a measure's history.

    Attributes:
        replicate: seed of the run, or None.
        kind: a curve's last value, a sample's median after warm-up, or a number of a profile.
        value: NaN if the run's was not finite.
    """

    night: str
    started_at: str
    replicate: int | None
    kind: MeasureKind
    value: float
    unit: str
    better: Better


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """A job's outcome, result, profile and machine, as stored."""

    outcome: Outcome
    record: RunRecord | None = None
    profile: Profile | None = None
    machine: str | None = None

    @property
    def measures(self) -> tuple[Measure, ...]:
        """The measures for histories; empty if the run did not complete."""
        measures: list[Measure] = []
        if self.outcome.completed and self.record is not None:
            measures += summarize(self.record)
        if self.outcome.completed and self.profile is not None:
            measures += summarize_profile(self.profile)
        return tuple(measures)


def summarize(record: RunRecord) -> Iterator[Measure]:
    """The measures of a run; of duplicates of a kind and name the first counts."""
    measures: dict[tuple[str, str], Measure] = {}
    for curve in record.curves:
        if curve.values and ("curve", curve.name) not in measures:
            measures["curve", curve.name] = _measure("curve", curve, _last(curve))
    for sample in record.samples:
        if ("sample", sample.name) not in measures:
            measures["sample", sample.name] = _measure("sample", sample, sample.level)
    yield from measures.values()


def _measure(kind: MeasureKind, source: Curve | Sample, value: float) -> Measure:
    finite = value if math.isfinite(value) else None
    return Measure(kind=kind, name=source.name, unit=source.unit, better=source.better, value=finite)


def _last(curve: Curve) -> float:
    if not all(map(math.isfinite, curve.values)):
        return math.nan
    return curve.values[-1]


def summarize_profile(profile: Profile) -> Iterator[Measure]:
    """The measures of a capture: device time per step, in total and by category, and fractions with a Python line.

    If the capture names no steps, times are of the whole capture.
    """
    steps = 1
    if profile.steps:
        steps = profile.steps[1] - profile.steps[0] + 1
    times = {"device_time": profile.device_time_ns}
    times |= {f"device_time.{name.replace(' ', '_')}": spent for name, spent in sorted(profile.categories.items())}
    for name, spent_ns in times.items():
        yield Measure(kind="profile", name=name, unit="s", better="lower", value=spent_ns / 1e9 / max(1, steps))
    fractions = {"attributed": profile.direct_fraction + profile.inferred_fraction, "user": profile.user_fraction}
    for name, fraction in fractions.items():
        value = fraction if math.isfinite(fraction) else None
        yield Measure(kind="profile", name=f"{name}_fraction", unit="fraction", better="higher", value=value)
