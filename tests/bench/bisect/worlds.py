"""What does a simulated ladder answer when one of its rungs is tested? In: a cell and a seed. Out: results.

A metric of single-run error e has two normal levels, in logs, so far apart that a threshold half-way errs with
probability e. The true culprit is uniform over the ladder.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import ndtri

SD = 0.01  # of a metric, in logs
CLEAR = 60.0  # levels are so many standard deviations apart where the error is 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One column of the bench.

    Attributes:
        name: for the table.
        n: rungs.
        kind: `exit`: errs alike on either side; `flaky`: errs on good rungs only; `metric`; `two`: a metric with two
            regressions of equal size; `packages`: several packages in one timeline, some with interactions.
        error: of a single run; of either step for `two`.
        unbuildable: share of rungs that cannot be built, the ends never.
    """

    name: str
    n: int
    kind: Literal["exit", "flaky", "metric", "two", "packages"]
    error: float
    unbuildable: float = 0.0

    @property
    def is_metric(self) -> bool:
        """Whether a test prints a number."""
        return self.kind in ("metric", "two")


class World:
    """A ladder with a hidden truth."""

    def __init__(self, cell: Cell, seed: int) -> None:
        self.cell = cell
        self.random = np.random.default_rng([seed, cell.n, round(cell.error * 100), len(cell.kind)])
        n = cell.n
        count = 2 if cell.kind == "two" else 1
        self.culprits = sorted(int(k) for k in self.random.choice(np.arange(1, n), count, replace=False))
        broken = self.random.random(n) < cell.unbuildable
        broken[[0, n - 1]] = False
        self.broken = broken
        self.gap = SD * (-2 * float(ndtri(cell.error)) if cell.error > 0 else CLEAR)
        self.tests = 0
        self.built: set[int] = set()

    def side(self, rung: int) -> int:
        """How many changes there have been."""
        return sum(rung >= culprit for culprit in self.culprits)

    def run(self, rung: int) -> float | None:
        """One test: the metric; 1.0 for a failure and 0.0 for a pass; None where it cannot be built."""
        self.tests += 1
        self.built.add(rung)
        return None if self.broken[rung] else self.measure(self.side(rung))

    def measure(self, side: int) -> float:
        """The result of a run on that side of the change."""
        if self.cell.is_metric:
            return 100 * math.exp(self.gap * side + SD * self.random.normal())
        errs = self.random.random() < self.cell.error and not (self.cell.kind == "flaky" and side)
        return float(bool(side) ^ errs)

    @property
    def threshold(self) -> float:
        """Half-way between the levels of a metric: for rivals that need to be told."""
        return 100 * math.exp(self.gap / 2) if self.cell.is_metric else 0.5

    def accepts(self, first: int, last: int) -> bool:
        """Whether `the change is at first to last` is right: the culprit is there, and what is between is broken."""
        return first <= self.culprits[0] <= last and bool(self.broken[first:last].all())
