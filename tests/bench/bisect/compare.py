"""Our bisections on machines that are not always equally fast, beside what others answer there.

In: a machine's name, a seed. Out: the trials of ours, the outcomes of the rivals.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nightjar_ci.bisect.search.types import SearchSettings
from tests.bench.bisect.clocks import MACHINES, start_clock
from tests.bench.bisect.machines import Trial, is_told_by_plain_test, run_trial
from tests.bench.bisect.rivals import run_git_bayesect, run_plain, run_triage
from tests.bench.bisect.trials import GIT, PLAIN, TRIAGE, Outcome, judge
from tests.bench.bisect.worlds import RUNGS, Cell, World

THRESHOLD_RUNS = 200  # of either side, by which the rivals' threshold is set


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One ladder on a machine.

    Attributes:
        pairs, singles: our bisections.
        rivals: what others answered, by their names.
        is_told: whether a plain paired test tells the ends apart.
    """

    pairs: Trial
    singles: Trial
    rivals: dict[str, Outcome]
    is_told: bool


class MachineWorld(World):
    """A ladder on a machine, for the rivals, which need to be told a threshold."""

    def __init__(self, machine: str, seed: int) -> None:
        super().__init__(Cell(name=machine, n=RUNGS, kind="metric", error=0.0), seed)
        self.clock = start_clock(machine, np.random.default_rng([seed, MACHINES.index(machine), 1]))
        sides = np.array([next(self.clock) for _ in range(THRESHOLD_RUNS)])
        self.between = float(np.median(sides, axis=0).mean())

    def measure(self, side: int) -> float:
        """The result of a run on that side of the change."""
        return next(self.clock)[side]

    @property
    def threshold(self) -> float:
        """Half-way between the medians of the two sides."""
        return self.between


def run_rivals(machine: str, seed: int) -> dict[str, Outcome]:
    """What others answer, each on its own copy of the ladder."""
    outcomes = {}
    confidence = SearchSettings().confidence
    world = MachineWorld(machine, seed)
    outcomes[GIT] = judge(world, run_git_bayesect(world, confidence))
    for name, rival in ((TRIAGE, run_triage), (PLAIN, run_plain)):
        world = MachineWorld(machine, seed)
        outcomes[name] = judge(world, rival(world))
    return outcomes


def compare(job: tuple[str, int]) -> tuple[str, Compared]:
    """One ladder on a machine: in pairs, by single tests, by rivals, and by a plain paired test of its ends."""
    pairs, singles = run_trial(*job), run_trial(*job, paired=False)
    return job[0], Compared(pairs=pairs, singles=singles, rivals=run_rivals(*job), is_told=is_told_by_plain_test(*job))
