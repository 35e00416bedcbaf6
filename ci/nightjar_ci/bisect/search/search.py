"""The search of one bisection: observations in, probes and an answer out.

Pure: the same observations in the same order give the same search, so an interrupted bisection resumes by replaying
them. docs/statistics.md explains the model and the measurements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from nightjar_ci.bisect.search.conclude import conclude, give_up
from nightjar_ci.bisect.search.next_probes import are_ends_done, next_rungs
from nightjar_ci.bisect.search.noise import Array
from nightjar_ci.bisect.search.results import Results
from nightjar_ci.bisect.search.types import Conclusion, Observation, SearchSettings

END_DOUBT = 0.1  # prior probability that an end is misjudged


def make_prior(weights: Sequence[float] | Array) -> Array:
    """Probability of each culprit 0 to N, with some doubt about the ends."""
    inner, ends = np.asarray(weights, dtype=np.float64), [END_DOUBT / 2]
    return np.concatenate([ends, inner / inner.sum() * (1 - END_DOUBT), ends])


class Search:
    """A bisection of a ladder.

    Args:
        n_rungs: length of the ladder; rung 0 is the known good end, the last the known bad one.

    >>> search = Search(8, SearchSettings(deterministic=True))
    >>> while search.conclusion() is None:
    ...     rung = search.next_probes(1, lambda rung: 1.0)[0]
    ...     search.add(Observation(rung=rung, outcome="bad" if rung >= 5 else "good"))
    >>> search.conclusion().culprit, search.conclusion().tests
    (5, 5)
    """

    def __init__(self, n_rungs: int, settings: SearchSettings) -> None:
        self._results = Results(n_rungs, settings, make_prior(np.ones(n_rungs - 1)))
        self._concluded: tuple[int, Conclusion | None] | None = None

    @property
    def settings(self) -> SearchSettings:
        return self._results.settings

    @property
    def is_inside(self) -> bool:
        """Whether both ends were tested and differ, so that the search looks between them."""
        return are_ends_done(self._results)

    def weigh(self, weights: Sequence[float]) -> None:
        """Sets the prior: the weight of each culprit 1 to N - 1, which are equal at first."""
        self._results.weigh(make_prior(weights))
        self._concluded = None

    def add(self, observation: Observation) -> None:
        self._results.add(observation)

    def posterior(self) -> Array:
        """Probability of each culprit 1 to N - 1, given that there is one change; element i is culprit i + 1."""
        results = self._results
        inner = (results.fit().culprits(results.prior) if results.values else results.prior)[1:-1]
        return np.asarray(inner / max(inner.sum(), 1e-300))

    def next_probes(self, room: int, cost_of: Callable[[int], float], running: Sequence[int] = ()) -> list[int]:
        """The rungs to test next, best first; none if the search has concluded, or should wait for `running`."""
        if self.conclusion() is not None:
            return []
        return next_rungs(self._results, room, cost_of, running)

    def partner(self, rung: int) -> int | None:
        """The rung that a test of `rung` is paired with, right before or after it in random order; None for none."""
        return self._results.partner(rung)

    def give_up(self, spent: str) -> Conclusion:
        return give_up(self._results, spent)

    def conclusion(self) -> Conclusion | None:
        tests = len(self._results.observations)
        if self._concluded is None or self._concluded[0] != tests:
            self._concluded = (tests, conclude(self._results))
        return self._concluded[1]
