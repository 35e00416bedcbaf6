"""The expected cost of a bisection: the search simulated before anything is run.

In: the length of a ladder and which rungs are ready, the settings, and measured times, if any. Out: builds, tests and,
if times were measured, seconds, as the mean over culprits spread along the ladder. The simulated test does not err (a
metric varies by 1 %). Real noise costs more tests; their number is not known in advance.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from nightjar_ci.bisect.search.search import Search
from nightjar_ci.bisect.search.types import Observation, SearchSettings

CULPRITS = 5
# The search's weights without measurements: a build costs some tests. No time is made of it.
USUAL_BUILD_S, USUAL_TEST_S = 30.0, 10.0
SPREAD = 0.01  # relative, of a metric


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Expected work: means; no time if the time of a test, or of a needed build, was not measured."""

    builds: float
    tests: float
    duration_s: float | None


def estimate(
    n_rungs: int,
    settings: SearchSettings,
    build_s: float | None,
    test_s: float | None,
    is_ready: Callable[[int], bool],
    *,
    sensors: bool = False,
) -> Estimate:
    """The expected work of a bisection.

    Args:
        build_s, test_s: time of one of each; None if none was measured.
        is_ready: whether a rung need not be built.
        sensors: some rungs run once more for their programs.
    """
    places = sorted({1 + round((n_rungs - 2) * (i + 0.5) / CULPRITS) for i in range(CULPRITS)})
    weighed = (USUAL_BUILD_S if build_s is None else build_s, USUAL_TEST_S if test_s is None else test_s)
    played = [_play(n_rungs, settings, culprit, *weighed, is_ready) for culprit in places]
    builds, tests = (sum(counts[i] for counts in played) / len(played) for i in (0, 1))
    runs = tests * (2 if settings.paired else 1)
    if sensors:
        runs += 2 + math.ceil(math.log2(n_rungs))
    if test_s is None or (build_s is None and builds > 0):
        return Estimate(builds=builds, tests=tests, duration_s=None)
    return Estimate(builds=builds, tests=tests, duration_s=builds * (build_s or 0.0) + runs * test_s)


def _play(
    n_rungs: int,
    settings: SearchSettings,
    culprit: int,
    build_s: float,
    test_s: float,
    is_ready: Callable[[int], bool],
) -> tuple[int, int]:
    """Builds and tests until a culprit is found."""
    search, random, built = Search(n_rungs, settings), Random(culprit), set[int]()

    def cost_of(rung: int) -> float:
        if rung in built or is_ready(rung):
            return test_s
        return test_s + build_s

    def measure(rung: int) -> float:
        level = 2.0 if (rung >= culprit) == (settings.metric == "lower") else 1.0
        return level * (1 + SPREAD * random.gauss(0, 1))

    while search.conclusion() is None:
        wanted = search.next_probes(1, cost_of)
        if not wanted:
            break
        rung = wanted[0]
        partner = search.partner(rung)
        built |= {index for index in (rung, partner) if index is not None and not is_ready(index)}
        if settings.metric is None:
            search.add(Observation(rung=rung, outcome="bad" if rung >= culprit else "good"))
            continue
        values = [measure(index) for index in (rung, partner) if index is not None]
        search.add(Observation(rung=rung, value=values[0], against=partner, beside=values[-1]))
    return len(built), search.tests
