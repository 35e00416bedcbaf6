"""How did each algorithm do on one simulated ladder? In: a cell and a seed. Out: an outcome per algorithm."""

import time
from dataclasses import dataclass

from nightjar_ci.bisect.search.conclude import conclude
from nightjar_ci.bisect.search.next_probes import next_rungs
from nightjar_ci.bisect.search.results import Results
from nightjar_ci.bisect.search.types import Conclusion, Observation, SearchSettings
from tests.bench.bisect.rivals import run_git_bayesect
from tests.bench.bisect.worlds import Cell, World

BUILD_COST = 20.0  # of a build where builds dominate, in tests
OURS, DEAR, SURE = "nightjar", "nightjar, builds dear", "nightjar, deterministic"
GIT = "git_bayesect 1.2"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one search.

    Attributes:
        right: whether the true culprit was named.
        aborted: whether it ended without naming one.
        tests, builds: spent.
        kind: of our conclusion.
        seconds: of CPU, ours only.
    """

    right: bool
    aborted: bool
    tests: int
    builds: int
    kind: str = ""
    seconds: float = 0.0


def run_cell(cell: Cell, seed: int) -> dict[str, Outcome]:
    outcomes = {OURS: run_ours(cell, seed, 0.0), DEAR: run_ours(cell, seed, BUILD_COST)}
    if cell.error == 0 and not cell.unbuildable:
        outcomes[SURE] = run_ours(cell, seed, 0.0, deterministic=True)
    world = World(cell, seed)
    outcomes[GIT] = judge(world, run_git_bayesect(world, SearchSettings().confidence))
    return outcomes


def judge(world: World, named: int | None) -> Outcome:
    """The outcome of a rival; where rungs are broken, any of those that cannot be told from the culprit will do."""
    first, last = sorted((world.culprit, world.culprit if named is None else named))
    right = named is not None and bool(world.broken[first:last].all())
    return Outcome(right=right, aborted=named is None, tests=world.tests, builds=len(world.built))


def run_ours(cell: Cell, seed: int, build_cost: float, deterministic: bool = False) -> Outcome:
    world = World(cell, seed)
    search = Results(cell.n, SearchSettings(deterministic=deterministic))
    start = time.process_time()
    while (conclusion := conclude(search)) is None:
        (rung,) = next_rungs(search, 1, lambda rung: 1.0 + (0.0 if rung in world.built else build_cost))
        value = world.run(rung)
        if value is None:
            search.add(Observation(rung=rung))
        else:
            search.add(Observation(rung=rung, outcome="bad" if value else "good"))
    return Outcome(
        right=is_right(world, conclusion),
        aborted=conclusion.kind != "culprit",
        tests=conclusion.tests,
        builds=conclusion.builds,
        kind=conclusion.kind,
        seconds=time.process_time() - start,
    )


def is_right(world: World, conclusion: Conclusion) -> bool:
    """Whether the culprit is named, and no rung that could have been tested is left in doubt."""
    if conclusion.kind != "culprit" or conclusion.culprits is None:
        return False
    first, last = conclusion.culprits
    return first <= world.culprit <= last and bool(world.broken[first:last].all())
