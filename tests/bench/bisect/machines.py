"""Bisections of a metric on machines that are not always equally fast; the clock counts runs.

In: a machine's name, a seed. Out: a conclusion of the search, with the truth and the runs that it took.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.stats import wilcoxon

from nightjar_ci.bisect.search.conclude import conclude
from nightjar_ci.bisect.search.next_probes import next_rungs
from nightjar_ci.bisect.search.results import Results
from nightjar_ci.bisect.search.types import Conclusion, Observation, SearchSettings
from tests.bench.bisect.clocks import CHANGE, MACHINES, SD, start_clock
from tests.bench.bisect.worlds import RUNG_NOISES, RUNGS, RungNoise

CANNOT_TELL = ("too_loud", "too_rare", "budget_out")
PLAIN_PAIRS, PLAIN_DOUBT = 40, 0.05  # of a paired test of the ends alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What became of one bisection.

    Attributes:
        conclusion: of the search.
        culprits: the true ones; none where nothing changed.
        runs: that it took; a pair is two.
    """

    conclusion: Conclusion
    culprits: tuple[int, ...]
    runs: int

    @property
    def right(self) -> bool:
        """Whether the rungs that it names, one or two, are true culprits; without a change, that there is none."""
        if not self.culprits:
            return self.conclusion.kind == "no_change"
        named = [place for place in (self.conclusion.culprits, self.conclusion.second) if place is not None]
        true = [(culprit, culprit) for culprit in self.culprits]
        return self.conclusion.kind in ("culprit", "two_changes") and all(place in true for place in named)

    @property
    def wrong(self) -> bool:
        """Whether it says something that is not so; that it cannot tell is not wrong."""
        return self.conclusion.kind not in CANNOT_TELL and not self.right


@dataclass(frozen=True, slots=True, kw_only=True)
class OnMachine:
    """One ladder on a machine: bisected, and whether a plain paired test tells its ends."""

    trial: Trial
    is_told: bool


def run_on_machine(job: tuple[str, int]) -> tuple[str, OnMachine]:
    return job[0], OnMachine(trial=run_trial(*job), is_told=is_told_by_plain_test(*job))


def bisect(search: Results, run: Callable[[int], float], random: np.random.Generator) -> tuple[Conclusion, int]:
    runs = 0
    while (conclusion := conclude(search)) is None:
        (rung,) = next_rungs(search, 1, lambda rung: 1.0)
        partner = search.partner(rung)
        runs += 1 if partner is None else 2
        if search.settings.metric is None:
            search.add(Observation(rung=rung, outcome="bad" if run(rung) else "good"))
        else:
            assert partner is not None, "a metric is measured in pairs"
            first = random.random() < 0.5
            values = [run(one) for one in ((rung, partner) if first else (partner, rung))]
            value, beside = values if first else reversed(values)
            search.add(Observation(rung=rung, value=value, against=partner, beside=beside))
    return conclusion, runs


def run_trial(machine: str, seed: int, *, change: float = CHANGE, sd: float = SD) -> Trial:
    random = np.random.default_rng([seed, MACHINES.index(machine)])
    culprit = int(random.integers(1, RUNGS)) if change else None
    clock = start_clock(machine, random, change, sd)
    search = Results(RUNGS, SearchSettings(metric="lower", reference="first"))
    conclusion, runs = bisect(search, lambda rung: next(clock)[culprit is not None and rung >= culprit], random)
    return Trial(conclusion=conclusion, culprits=() if culprit is None else (culprit,), runs=runs)


def run_rung_noise(noise: RungNoise, seed: int) -> Trial:
    random = np.random.default_rng([seed, RUNG_NOISES.index(noise)])
    culprits, run = noise.start(random)
    settings = SearchSettings(metric="lower", reference="first") if noise.is_metric else SearchSettings()
    conclusion, runs = bisect(Results(RUNGS, settings), run, random)
    return Trial(conclusion=conclusion, culprits=culprits, runs=runs)


def is_told_by_plain_test(machine: str, seed: int) -> bool:
    """Whether Wilcoxon's signed-rank test of 40 pairs of the ends alone tells that they differ."""
    clock = start_clock(machine, np.random.default_rng([seed, MACHINES.index(machine), PLAIN_PAIRS]))
    pairs = [(next(clock)[0], next(clock)[1]) for _ in range(PLAIN_PAIRS)]
    return bool(wilcoxon([math.log(after / before) for before, after in pairs]).pvalue < PLAIN_DOUBT)
