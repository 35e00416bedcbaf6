"""What is known so far? The results of a ladder, which rungs are given up, and what the results say.

In: observations. Out: counts, the fit of one change, and how probable each shape of the ladder is.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nightjar_ci.bisect.search.change_shapes import Shape
from nightjar_ci.bisect.search.fit import Fit, fit
from nightjar_ci.bisect.search.information_gain import entropy, information_of_shape
from nightjar_ci.bisect.search.noise import Array
from nightjar_ci.bisect.search.types import Observation, SearchSettings
from nightjar_ci.errors import InputError

SHAPE_SURE = 0.995  # probability at which one change, two changes or a drift is taken for granted
RETESTS = 12  # runs of a rung after which more of them are not expected to tell whether there is a third level;
MOST_SPENT = 4  # with so many such rungs, or where a test tells less than
LEAST_GAIN = 0.003  # of what is not known about the shape, it stays unknown
END_TRIES = 3  # an end that cannot be tested so often is given up; any other rung at once, there are others


class Results:
    """The results of a ladder.

    Args:
        n_rungs: its length.
        settings: what kind of test it is.
        prior: probability of each culprit 0 to N; 0 is "all are bad", N "all are good".
    """

    def __init__(self, n_rungs: int, settings: SearchSettings, prior: Array) -> None:
        self.n_rungs = n_rungs
        self.settings = settings
        self.prior = prior
        self.below: Array = np.concatenate([[0.0], np.cumsum(prior)])  # prior mass of culprits before
        self.observations: list[Observation] = []
        self.values: dict[int, list[float]] = {}
        self.misses: dict[int, int] = {}
        self._fitted: tuple[int, Fit] | None = None
        self._shaped: tuple[int, Shape] | None = None

    @property
    def ends(self) -> tuple[int, int]:
        """The good end and the bad one."""
        return 0, self.n_rungs - 1

    @property
    def least(self) -> int:
        """Tests of an end before anything is concluded."""
        return 1 if self.settings.deterministic or self.settings.metric is None else 3

    @property
    def builds(self) -> int:
        """Rungs touched so far."""
        return len(self.values.keys() | self.misses.keys())

    def add(self, observation: Observation) -> None:
        """Takes in the result of a test."""
        rung = observation.rung
        if not 0 <= rung < self.n_rungs:
            raise InputError(f"rung {rung} is not on a ladder of {self.n_rungs} rungs.")
        self.observations.append(observation)
        if not observation.tells(self.settings.metric is not None):
            self.misses[rung] = self.misses.get(rung, 0) + 1
            return
        if self.settings.metric is None:
            value = 1.0 if observation.outcome == "bad" else 0.0
        else:
            assert observation.value is not None
            value = observation.value
        self.values.setdefault(rung, []).append(value)

    def count(self, rung: int) -> int:
        """Tests of a rung that could tell."""
        return len(self.values.get(rung, ()))

    def skips(self, rung: int) -> bool:
        """Whether a rung is given up: it could not be tested too often, for the times that it could."""
        tries = END_TRIES if rung in self.ends else 1
        return self.misses.get(rung, 0) >= tries * (1 + self.count(rung))

    def fit(self) -> Fit:
        """As one change; there must be a result that tells."""
        if self._fitted is None or self._fitted[0] != len(self.observations):
            self._fitted = (len(self.observations), fit(self.values, self.settings, self.below))
        return self._fitted[1]

    def shape(self) -> Shape:
        """Whether it is one change, two, or a drift; both ends must have results. Exit codes know two levels only."""
        if self.settings.metric is None:
            return Shape(1.0, 0.0, 0.0)
        if self._shaped is None or self._shaped[0] != len(self.observations):
            self._shaped = (len(self.observations), self.fit().shape(self.n_rungs))
        return self._shaped[1]

    def is_resolved(self, gap: int) -> bool:
        """Whether no rung inside a gap is left to test."""
        fitted = self.fit()
        return all(self.skips(rung) for rung in range(int(fitted.firsts[gap]), int(fitted.lasts[gap])))

    def lacking(self, gaps: Sequence[int]) -> list[int]:
        """Neighbours of gaps that were not run twice."""
        if self.settings.deterministic:
            return []
        tested = self.fit().tested
        neighbours = {int(tested[at]) for gap in gaps for at in (gap - 1, gap)}
        return [rung for rung in sorted(neighbours) if self.count(rung) < 2 and not self.skips(rung)]

    def concluded(self) -> tuple[int, ...]:
        """The gap of the change, or those of both, where that is sure but for running some rungs again."""
        fitted, shape = self.fit(), self.shape()
        gaps: tuple[int, ...] = (fitted.best,)
        mass = float(fitted.mass[fitted.best])
        if shape.pair is not None and shape.one < 0.5 and (shape.two >= SHAPE_SURE or self.odd_rung() is not None):
            gaps = shape.pair.best
            mass = float(shape.pair.mass.max()) if shape.two >= SHAPE_SURE else 0.0
        return gaps if mass >= self.settings.sure and all(self.is_resolved(gap) for gap in gaps) else ()

    def shape_gains(self) -> Array:
        """What one more test of each tested rung is expected to tell about the shape, in nats; shape (rungs,).

        Nothing where the shape is known, or where it would take too many tests to tell.
        """
        fitted, shape = self.fit(), self.shape()
        nothing = np.zeros(len(fitted.tested))
        if self.settings.deterministic or shape.known >= SHAPE_SURE:
            return nothing
        gains = information_of_shape(fitted.noise, fitted.change, fitted.mass, shape)
        spent = np.array([self.count(int(rung)) >= RETESTS for rung in fitted.tested])
        gains[spent | np.array([self.skips(int(rung)) for rung in fitted.tested])] = 0.0
        doubt = entropy(np.array([shape.one, shape.two, shape.drift]))
        return nothing if spent.sum() >= MOST_SPENT or gains.max() < LEAST_GAIN * doubt else gains

    def odd_rung(self) -> int | None:
        """The rung that tells most about the shape, where it is worth asking; None if not."""
        gains = self.shape_gains()
        return int(self.fit().tested[np.argmax(gains)]) if gains.any() else None
