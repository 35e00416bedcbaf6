"""Simulated machines that are not always equally fast, and bisections of a metric on them; the clock counts runs.

In: a machine's name, a seed. Out: a conclusion of the search, with the truth and the runs that it took. A test takes
one tick. All noise multiplies: what slows the machine slows every rung alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.stats import wilcoxon

from nightjar_ci.bisect.search.search import Search
from nightjar_ci.bisect.search.types import Conclusion, Observation, SearchSettings

RUNGS, CHANGE, SD = 30, 0.1, 0.03
PLAIN_PAIRS, PLAIN_DOUBT = 40, 0.05  # of a paired test of the ends alone
MACHINES = ("quiet", "phases", "modes", "spikes", "drift", "two machines", "loud")


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


def slowness(machine: str, random: np.random.Generator) -> Iterator[float]:
    """How much slower than at its best the machine is at each tick."""
    slow, until, tick = False, random.exponential(20), 0
    change = random.integers(5, 40)
    while True:
        tick += 1
        factor = 1.0
        if machine == "phases":  # of 20 runs on average
            if tick > until:
                slow, until = not slow, tick + random.exponential(20)
            factor = 2.6 if slow else 1.0
        elif machine == "modes":  # 10 % of runs in the slow mode, later 60 %
            factor = 1.3 if random.random() < (0.1 if tick < change else 0.6) else 1.0
        elif machine == "spikes":
            factor = 5.0 if random.random() < 0.2 else 1.0
        elif machine == "drift":
            factor = 1.01**tick
        elif machine == "two machines":  # each run is on either
            factor = 1.4 if random.random() < 0.5 else 1.0
        elif machine == "loud":
            factor = math.exp(0.3 * random.normal())
        yield factor


def run_trial(machine: str, seed: int, *, paired: bool = True, change: float = CHANGE, sd: float = SD) -> Trial:
    """One bisection of a ladder on a machine."""
    random = np.random.default_rng([seed, MACHINES.index(machine)])
    culprit = int(random.integers(1, RUNGS)) if change else None
    ticks, runs = slowness(machine, random), 0

    def run(rung: int) -> float:
        nonlocal runs
        runs += 1
        worse = culprit is not None and rung >= culprit
        return 10 * (1 + change * worse) * math.exp(sd * random.normal()) * next(ticks)

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
    random = np.random.default_rng([seed, MACHINES.index(machine), PLAIN_PAIRS])
    ticks = slowness(machine, random)
    runs = [[math.log(next(ticks)) + SD * random.normal() for _ in range(2)] for _ in range(PLAIN_PAIRS)]
    differences = np.array([after - before for before, after in runs]) + math.log(1 + CHANGE)
    return bool(wilcoxon(differences).pvalue < PLAIN_DOUBT)


def run_both(job: tuple[str, int]) -> tuple[str, dict[str, Trial], bool]:
    """One ladder on a machine, in pairs and by single tests, and whether a plain paired test tells its ends apart."""
    both = {"pairs": run_trial(*job), "singles": run_trial(*job, paired=False)}
    return job[0], both, is_told_by_plain_test(*job)
