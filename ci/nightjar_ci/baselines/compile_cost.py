"""Compile cost of a cell: CPU seconds and peak memory of the compiler, as its results record them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from nightjar_ci.formats.run_record import RunRecord

MEASURES = {  # sample name -> description, display unit, and size of that unit in the sample's unit
    "compile_cpu_time": ("Compiling", "s of CPU", 1.0),
    "compiler_memory": ("Memory of the compiler", "GiB", 2.0**30),
}


def read_compile_cost(runs: Sequence[RunRecord]) -> dict[str, float]:
    """The compile cost by measure: the median over runs; a measure that is missing or not finite is left out."""
    medians: dict[str, list[float]] = {}
    for run in runs:
        for sample in run.samples:
            if sample.name in MEASURES:
                medians.setdefault(sample.name, []).append(sample.level)
    return {name: median(values) for name, values in medians.items() if all(map(math.isfinite, values))}
