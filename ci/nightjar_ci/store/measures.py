"""Which one number stands for a measure of a run in its history? Pure.

A sample's number is its median after warm-up; a curve's is its last value.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from nightjar_ci.record import Better, RunRecord

MeasureKind = Literal["curve", "sample"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One number of a run; None where it is not finite."""

    kind: MeasureKind
    name: str
    unit: str
    better: Better
    value: float | None


def summarize(record: RunRecord) -> Iterator[Measure]:
    """The measures of a run; of two of one kind and name the first counts."""
    seen: set[tuple[str, str]] = set()
    found: list[tuple[MeasureKind, str, str, Better, float]] = [
        *(("curve", one.name, one.unit, one.better, one.values[-1]) for one in record.curves if one.values),
        *(("sample", one.name, one.unit, one.better, statistics.median(one.steady)) for one in record.samples),
    ]
    for kind, name, unit, better, value in found:
        if (kind, name) not in seen:
            seen.add((kind, name))
            finite = value if math.isfinite(value) else None
            yield Measure(kind=kind, name=name, unit=unit, better=better, value=finite)
