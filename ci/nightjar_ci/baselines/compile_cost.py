"""Compile cost of a cell: seconds of CPU and peak memory of the compiler, as its results record them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from nightjar_ci.formats.run_record import RunRecord

MEASURES = {  # sample of a result: in words, its unit for people, and how many of its own unit that is
    "compile_cpu_time": ("Compiling", "s of CPU", 1.0),
    "compiler_memory": ("Memory of the compiler", "GiB", 2.0**30),
}


def read_taken(runs: Sequence[RunRecord]) -> dict[str, float]:
    """What the compiler took, by measure: the median over runs; what they do not say, or not as a finite number, is
    left out."""
    found: dict[str, list[float]] = {}
    for run in runs:
        for sample in run.samples:
            if sample.name in MEASURES:
                found.setdefault(sample.name, []).append(sample.level)
    return {name: median(values) for name, values in found.items() if all(map(math.isfinite, values))}
