"""What does git_bayesect answer on the same ladders? By its own code, driven as its `run` command does.

In: a world. Out: the rung that it names, or None where it gives up.
"""

import git_bayesect  # type: ignore[import-untyped,import-not-found,unused-ignore]
import numpy as np

from tests.bench.bisect.worlds import World

MOST_TESTS = 400


def run_git_bayesect(world: World, confidence: float) -> int | None:
    """Index 0 is the newest commit; the culprit's index is the last that fails."""
    n = world.cell.n
    bisector = git_bayesect.Bisector(np.ones(n))
    with np.errstate(divide="ignore", invalid="ignore"):  # it takes logs of the zeros that skipped commits leave
        while bisector.distribution.max() < confidence:
            if world.tests >= MOST_TESTS:
                return None
            index = bisector.select()
            value = world.run(n - 1 - index)
            bisector.record(index, value)
        return n - 1 - int(np.argmax(bisector.distribution))
