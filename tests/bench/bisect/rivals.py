"""What do others answer on the same ladders? git_bayesect by its own code, triage, `git bisect`, repeat-and-vote.

In: a world. Out: the rung they name, or None where they give up. git_bayesect judges by exit code only, so a metric is
compared with the threshold half-way between the true levels, which nobody knows in practice.

Source: git_bayesect 1.2 (its `Bisector`, driven as its `run` command does, at the same confidence).
"""

from __future__ import annotations

import math

import git_bayesect  # type: ignore[import-untyped,import-not-found,unused-ignore]
import numpy as np
from scipy.stats import binom

from tests.bench.bisect.packages import PackageWorld
from tests.bench.bisect.triage import ExitCodes, Gaussians, GaveUpError, Triage
from tests.bench.bisect.worlds import World

MOST_TESTS = 400
NIGHTLY = 16  # rungs from one nightly image to the next
SEEDS = 5  # known values of either side that triage is given, not counted as tests


def fails(world: World, rung: int) -> bool | None:
    """The result as an exit code."""
    value = world.run(rung)
    return None if value is None else value > world.threshold


def run_git_bayesect(world: World, confidence: float) -> tuple[int, int] | None:
    """Index 0 is the newest commit; the culprit's index is the last that fails."""
    n = world.cell.n
    bisector = git_bayesect.Bisector(np.ones(n))
    with np.errstate(divide="ignore", invalid="ignore"):  # it takes logs of the zeros that skipped commits leave
        while bisector.distribution.max() < confidence:
            if world.tests >= MOST_TESTS:
                return None
            index = bisector.select()
            bisector.record(index, fails(world, n - 1 - index))
        rung = n - 1 - int(np.argmax(bisector.distribution))
    return rung, rung


def votes(n: int, error: float) -> int:
    """The smallest odd number of runs per rung with which all decisions of a bisection are right 99 times in 100."""
    decisions = math.ceil(math.log2(n))
    for runs in range(1, 99, 2):
        if (1 - binom.sf(runs // 2, runs, error)) ** decisions >= 0.99:
            return runs
    raise ValueError(f"no number of votes mends an error of {error}")


def run_plain(world: World) -> tuple[int, int]:
    """`git bisect run`: each rung is decided by one test."""
    return run_votes(world, runs=1)


def run_votes(world: World, runs: int | None = None) -> tuple[int, int]:
    """Plain bisection, each rung decided by a majority; a rung that cannot be built gives way to its neighbour."""
    low, high = 0, world.cell.n - 1
    runs = runs or votes(world.cell.n, world.cell.error)
    while high - low > 1:
        inside = [rung for rung in range(low + 1, high) if rung not in world.built or not world.broken[rung]]
        if not inside:
            break
        middle = min(inside, key=lambda rung: abs(2 * rung - low - high))
        results = [fails(world, middle)]
        if results[0] is None:
            continue
        results += [fails(world, middle) for _ in range(runs - 1)]
        if sum(map(bool, results)) > runs // 2:
            high = middle
        else:
            low = middle
    return low + 1, high


def run_triage(world: World) -> tuple[int, int] | None:
    """JAX-Toolbox's algorithm: nightly images first (exit codes only), then versions between two of them."""
    low, high = 0, world.cell.n - 1

    def run(versions: dict[str, int]) -> float | None:
        return world.run(versions["rung"])

    try:
        if world.cell.is_metric:
            good, bad = ([world.measure(side) for _ in range(SEEDS)] for side in (0, len(world.culprits)))
            tool = Triage(run, Gaussians(good, bad))
        else:
            tool = Triage(run, ExitCodes())
            low, high = search_nightlies(world)
            world.built.clear()  # those images were there
        _, last_good, first_bad = tool.search({"rung": [(rung, float(rung)) for rung in range(low, high + 1)]})
    except GaveUpError:
        return None
    return last_good + 1, first_bad


def search_nightlies(world: World) -> tuple[int, int]:
    """Back from the bad end by doubled steps to an image that passes, then bisection between the two."""
    last = world.cell.n - 1
    images = sorted({*range(0, last, NIGHTLY), last})
    images = [rung for rung in images if not world.broken[rung]]
    if fails(world, last) is not True:
        raise GaveUpError("the failure could not be reproduced")
    low, high, step = len(images) - 2, len(images) - 1, 1
    while fails(world, images[low]) is not False:
        if low == 0:
            raise GaveUpError("no image passes")
        high, step = low, 2 * step
        low = max(len(images) - 1 - step, 0)
    while high - low > 1:
        middle = (low + high) // 2
        if fails(world, images[middle]):
            high = middle
        else:
            low = middle
    return images[low], images[high]


def run_triage_on_packages(world: PackageWorld) -> bool | None:
    """Whether the version it blames is one that the failure needs; None where it gives up."""
    try:
        name, _, bad = Triage(world.run_versions, ExitCodes()).search(world.versions())
    except GaveUpError:
        return None
    return world.accepts_version(name, bad)
