"""Bisections of a metric on machines that are not always equally fast; the clock counts runs.

In: a machine's name, a seed. Out: a conclusion of the search, with the truth and the runs that it took.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.stats import wilcoxon

from nightjar_ci.bisect.search.search import Search
from nightjar_ci.bisect.search.types import Conclusion, Observation, SearchSettings
from tests.bench.bisect.clocks import CHANGE, MACHINES, SD, start_clock

RUNGS = 30
PLAIN_PAIRS, PLAIN_DOUBT = 40, 0.05  # of a paired test of the ends alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What became of one bisection.

    Attributes:
        conclusion: of the search.
        culprit: the true one; None where nothing changed.
        runs: that it took; a pair is two.
    """

    conclusion: Conclusion
    culprit: int | None
    runs: int

    @property
    def wrong(self) -> bool:
        """Whether it says something that is not so; that it cannot tell is not wrong."""
        conclusion = self.conclusion
        if conclusion.kind in ("too_loud", "budget_out"):
            return False
        if conclusion.kind == "no_change":
            return self.culprit is not None
        return conclusion.kind != "culprit" or conclusion.culprit != self.culprit


def run_trial(machine: str, seed: int, *, paired: bool = True, change: float = CHANGE, sd: float = SD) -> Trial:
    """One bisection of a ladder on a machine."""
    random = np.random.default_rng([seed, MACHINES.index(machine)])
    culprit = int(random.integers(1, RUNGS)) if change else None
    clock, runs = start_clock(machine, random, change, sd), 0

    def run(rung: int) -> float:
        nonlocal runs
        runs += 1
        return next(clock)[culprit is not None and rung >= culprit]

    search = Search(RUNGS, SearchSettings(metric="lower", reference="first" if paired else None))
    while (conclusion := search.conclusion()) is None:
        (rung,) = search.next_probes(1, lambda rung: 1.0)
        partner = search.partner(rung)
        if partner is None:
            search.add(Observation(rung=rung, value=run(rung)))
            continue
        first = random.random() < 0.5
        values = [run(one) for one in ((rung, partner) if first else (partner, rung))]
        value, beside = values if first else reversed(values)
        search.add(Observation(rung=rung, value=value, against=partner, beside=beside))
    return Trial(conclusion=conclusion, culprit=culprit, runs=runs)


def is_told_by_plain_test(machine: str, seed: int) -> bool:
    """Whether Wilcoxon's signed-rank test of 40 pairs of the ends alone tells that they differ."""
    clock = start_clock(machine, np.random.default_rng([seed, MACHINES.index(machine), PLAIN_PAIRS]))
    pairs = [(next(clock)[0], next(clock)[1]) for _ in range(PLAIN_PAIRS)]
    return bool(wilcoxon([math.log(after / before) for before, after in pairs]).pvalue < PLAIN_DOUBT)
