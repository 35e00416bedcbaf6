"""What does a simulated ladder answer when one of its rungs is tested? In: a cell and a seed. Out: results.

The true culprit is uniform over the ladder.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One column of the bench.

    Attributes:
        name: for the table.
        n: rungs.
        kind: `exit`: errs alike on either side; `flaky`: errs on good rungs only.
        error: of a single run.
        unbuildable: share of rungs that cannot be built, the ends never.
    """

    name: str
    n: int
    kind: Literal["exit", "flaky"]
    error: float
    unbuildable: float = 0.0


class World:
    def __init__(self, cell: Cell, seed: int) -> None:
        self.cell = cell
        self.random = np.random.default_rng([seed, cell.n, round(cell.error * 100), len(cell.kind)])
        n = cell.n
        self.culprit = int(self.random.choice(np.arange(1, n), 1, replace=False)[0])
        broken = self.random.random(n) < cell.unbuildable
        broken[[0, n - 1]] = False
        self.broken = broken
        self.tests = 0
        self.built: set[int] = set()

    def run(self, rung: int) -> bool | None:
        """One test: whether it fails; None where it cannot be built."""
        self.tests += 1
        self.built.add(rung)
        if self.broken[rung]:
            return None
        is_bad = rung >= self.culprit
        errs = self.random.random() < self.cell.error and not (self.cell.kind == "flaky" and is_bad)
        return bool(is_bad ^ errs)


@dataclass(frozen=True, slots=True, kw_only=True)
class RungNoise:
    """A ladder of thirty rungs whose noise belongs to a rung or to a moment, and a change somewhere on it.

    Attributes:
        name: for the table.
        good, bad: failure rates on either side of an exit code; of own rates the mean.
        own_rates: each rung has a rate of its own.
        outages: for some tests in a row, all fail.
        change: of a metric, relative; a second one if there are two.
        luck: each build's own offset, its standard deviation in logs.
        mode: a rung is this many times slower, and stays so for about ten of its runs.
    """

    name: str
    good: float = 0.0
    bad: float = 0.0
    own_rates: bool = False
    outages: bool = False
    change: tuple[float, ...] = ()
    luck: float = 0.0
    mode: float = 1.0

    @property
    def is_metric(self) -> bool:
        return bool(self.change)

    def start(self, random: np.random.Generator) -> tuple[tuple[int, ...], Callable[[int], float]]:
        """The culprits, and a way to run a rung: the metric, or 1.0 for a failure."""
        count = max(1, len(self.change))
        culprits = sorted(int(k) for k in random.choice(np.arange(2, RUNGS - 1), count, replace=False))
        side = np.array([sum(rung >= culprit for culprit in culprits) for rung in range(RUNGS)])
        if self.is_metric:
            return tuple(culprits), self._start_metric(side, random)
        return tuple(culprits), self._start_exit(side, random)

    def _start_metric(self, side: NDArray[np.intp], random: np.random.Generator) -> Callable[[int], float]:
        steps = np.concatenate([[0.0], np.cumsum(np.log1p(self.change))])
        level = steps[side] + self.luck * random.normal(size=RUNGS)
        slow = random.random(RUNGS) < SLOW

        def run(rung: int) -> float:
            if random.random() < 0.1:
                slow[rung] = random.random() < SLOW
            return 10 * math.exp(level[rung] + RUN_SD * random.normal()) * (self.mode if slow[rung] else 1.0)

        return run

    def _start_exit(self, side: NDArray[np.intp], random: np.random.Generator) -> Callable[[int], float]:
        rates = np.where(side, self.bad, self.good)
        if self.own_rates:
            rates = rates * random.uniform(0.4, 1.6, RUNGS)
        left = 0

        def run(rung: int) -> float:
            nonlocal left
            if self.outages and not left and random.random() < 1 / 40:
                left = int(random.geometric(1 / 6))
            if left:
                left -= 1
                return 1.0
            return float(random.random() < rates[rung])

        return run


RUNGS, RUN_SD, SLOW = 30, 0.03, 0.3
RUNG_NOISES = (
    *(RungNoise(name=f"exit code, fails in {rate:.0%}", bad=rate) for rate in (0.1, 0.15, 0.2, 0.3)),
    RungNoise(name="exit code, 2% before and 30% after", good=0.02, bad=0.3),
    RungNoise(name="exit code, each rung its own rate", good=0.02, bad=0.4, own_rates=True),
    RungNoise(name="exit code, outages", bad=1.0, outages=True),
    RungNoise(name="exit code, 5% before, outages", good=0.05, bad=0.7, outages=True),
    *(RungNoise(name=f"luck of a build {sd:.0%}", change=(0.1,), luck=sd) for sd in (0.0, 0.01, 0.02, 0.03)),
    *(RungNoise(name=f"a mode sticks, x{mode}", change=(0.1,), mode=mode) for mode in (1.1, 1.3)),
    RungNoise(name="two changes", change=(0.1, 0.1)),
    RungNoise(name="two changes of opposite sign", change=(0.2, -0.1)),
    RungNoise(name="two changes, luck 1%", change=(0.1, 0.1), luck=0.01),
)
