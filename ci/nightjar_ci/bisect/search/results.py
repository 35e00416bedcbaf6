"""The results of a ladder so far, and their interpretation.

In: observations. Out: counts, which rungs are given up, the fit of one change, and the probability of each shape of the
ladder. Pure: the same observations in the same order give the same search, so an interrupted bisection resumes by
replaying them. docs/statistics.md explains the model and the measurements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from nightjar_ci.bisect.search.change_shapes import Shape
from nightjar_ci.bisect.search.fit import Fit, fit
from nightjar_ci.bisect.search.information_gain import entropy, information_of_shape
from nightjar_ci.bisect.search.luck import weigh_neighbours
from nightjar_ci.bisect.search.neighbours import Expected, e_value, median_interval
from nightjar_ci.bisect.search.noise import Array, Scale
from nightjar_ci.bisect.search.types import Level, Observation, SearchSettings
from nightjar_ci.errors import InputError

END_DOUBT = 0.1  # prior probability that an end is misjudged
SHAPE_SURE = 0.995  # probability at which one change, two changes or a drift is taken for granted
RETESTS = 12  # runs of a rung after which more of them are not expected to tell whether there is a third level;
MOST_SPENT = 4  # with this many such rungs, or when a test tells less than
LEAST_GAIN = 0.003  # of the uncertainty about the shape, it stays unknown
DRIFT_RUNGS = 7  # rungs between the ends that a drift must have been seen on
MENTIONED = 0.05  # probability of a second change that an answer with one speaks of
LOOKED_FOR = 0.1  # failure rate of a bad end that is ruled out before it is given up, if its user named none
CANDIDATE = 0.5  # probability of a culprit from which on its neighbours are checked,
DOUBTED = 0.25  # and until when
FAR_MORE = 2.0  # times the expected change, from which on the neighbours' measured change is expected, too
MISLED = 0.02  # probability that the search is misled by noise of another kind: then the prior holds
# No rung inside is built or tested before the ends differ: the doubt about them is below
ENDS_SEEN = 0.02
ENDS_TIRED = 0.1  # (after as many tests of the ends as are allowed),
# and of pairs below this, with an e-value of their signs above: three clear pairs, and on a noisy machine more. One
# pair more would cost every bisection as much as it saves bisections with equal ends. After as many pairs as are
# allowed, their signs alone decide: the machine's noise may be of a kind that the model of it does not know. And they
# must tell as much for each pair as the check of two neighbours, which are no further apart, needs to end in time.
ENDS_SEEN_IN_PAIRS = 0.05
ENDS_SIGNS = 6.5
# After as many pairs of the ends go on or say that they do not differ; of an exit code after half of all tests, if the
# bad end ever fails.
MOST_END_PAIRS = 40
MOST_CHECKS = 60  # pairs of two neighbours after which the machine is too noisy to check them
END_TRIES = 3  # an end that cannot be tested so often is given up; any other rung at once, there are others


class Results:
    """The results of a ladder: rung 0 is the known good end, the last the known bad one."""

    def __init__(self, n_rungs: int, settings: SearchSettings) -> None:
        self.n_rungs = n_rungs
        self.settings = settings
        self.weigh(np.ones(n_rungs - 1))
        self.observations: list[Observation] = []
        self.values: dict[int, list[float]] = {}
        self.pairs: dict[tuple[int, int], list[tuple[float, float]]] = {}
        self.misses: dict[int, int] = {}

    def weigh(self, weights: Sequence[float] | Array) -> None:
        """Sets the prior of culprits 0, "all are bad", to N, "all are good", from weights of culprits 1 to N - 1."""
        inner, ends = np.asarray(weights, dtype=np.float64), [END_DOUBT / 2]
        self.prior: Array = np.concatenate([ends, inner / inner.sum() * (1 - END_DOUBT), ends])
        self.below: Array = np.concatenate([[0.0], np.cumsum(self.prior)])  # prior mass of culprits before
        self._fitted: tuple[int, Fit] | None = None
        self._shaped: tuple[int, Shape] | None = None

    @property
    def ends(self) -> tuple[int, int]:
        return 0, self.n_rungs - 1

    @property
    def reference(self) -> int | None:
        if self.settings.reference is None:
            return None
        return self.ends[self.settings.reference == "last"]

    @property
    def tested_ends(self) -> tuple[int, ...]:
        return tuple(end for end in self.ends if end != self.reference)

    @property
    def least(self) -> int:
        """Tests of an end before anything is concluded."""
        if self.settings.paired:
            return 2
        return 1

    @property
    def most_end_tests(self) -> int:
        """Maximum number of tests of both ends to tell whether they differ."""
        if self.settings.paired:
            return MOST_END_PAIRS
        return self.settings.max_tests

    @property
    def builds(self) -> int:
        return len(self.values.keys() | self.misses.keys())

    def add(self, observation: Observation) -> None:
        rung = observation.rung
        if not 0 <= rung < self.n_rungs:
            raise InputError(f"rung {rung} is not on a ladder of {self.n_rungs} rungs.")
        self.observations.append(observation)
        if not observation.tells(self.settings.metric is not None):
            self.misses[rung] = self.misses.get(rung, 0) + 1
            return
        if observation.against is not None:
            assert observation.value is not None
            assert observation.beside is not None
            self._add_pair(rung, observation.against, observation.value, observation.beside)
            return
        if self.settings.metric is None:
            value = float(observation.outcome == "bad")
        else:
            assert observation.value is not None
            value = observation.value
        self.values.setdefault(rung, []).append(value)

    def _add_pair(self, rung: int, other: int, value: float, beside: float) -> None:
        """Takes in a pair: with the reference, a value is the ratio, or the difference if one is not positive."""
        if rung == self.reference:
            rung, other, value, beside = other, rung, beside, value
        self.pairs.setdefault((rung, other), []).append((value, beside))
        relative = self.is_relative()
        self.values = {
            rung: [a / b if relative else a - b for a, b in pairs]
            for (rung, other), pairs in self.pairs.items()
            if other == self.reference
        }
        if self.reference is not None and self.values:
            self.values[self.reference] = [1.0 if relative else 0.0]

    def is_relative(self) -> bool:
        return all(a > 0 and b > 0 for pairs in self.pairs.values() for a, b in pairs)

    @property
    def unit(self) -> float:
        """Of the offsets of rungs: 1 for logarithms, else the metric's usual value."""
        if not self.settings.paired or self.is_relative():
            return 1.0
        return max(abs(self.usual_reference()), 1e-300)

    def usual_reference(self) -> float:
        beside = [b for (_, other), pairs in self.pairs.items() if other == self.reference for _, b in pairs]
        return float(np.median(beside))

    def in_unit(self, level: Level) -> Level:
        """A level in the unit of the metric, from the ratio or difference to the reference in pairs."""
        if not self.settings.paired:
            return level
        usual = self.usual_reference()
        mean, low, high = (
            usual * value if self.is_relative() else usual + value for value in (level.mean, level.low, level.high)
        )
        return Level(mean=mean, low=low, high=high)

    def differences(self, low: int, high: int) -> Array:
        """Differences between two rungs measured as a pair, as the search sees them; shape (pairs,)."""
        scale = Scale(self.settings.metric or "lower", self.is_relative())
        up = [(a, b) for a, b in self.pairs.get((high, low), ())]
        up += [(b, a) for a, b in self.pairs.get((low, high), ())]
        values = np.array(up, dtype=np.float64).reshape(-1, 2)
        return np.asarray(scale.apply(values[:, 0]) - scale.apply(values[:, 1]))

    def count(self, rung: int) -> int:
        if rung == self.reference:
            return sum(len(pairs) for (_, other), pairs in self.pairs.items() if other == rung)
        return len(self.values.get(rung, ()))

    def skips(self, rung: int) -> bool:
        """Whether a rung is given up: too many inconclusive tests, given its conclusive ones."""
        tries = END_TRIES if rung in self.ends else 1
        return self.misses.get(rung, 0) >= tries * (1 + self.count(rung))

    def posterior(self) -> Array:
        """Probability of each culprit 1 to N - 1, given that there is one change; element i is culprit i + 1."""
        inner = (self.fit().culprits(self.prior) if self.values else self.prior)[1:-1]
        return np.asarray(inner / max(inner.sum(), 1e-300))

    def fit(self) -> Fit:
        """As one change; there must be a result that tells."""
        if self._fitted is None or self._fitted[0] != len(self.observations):
            neighbours = [self.differences(b, a) for a, b in self.pairs if self.reference not in (a, b)]
            fitted = fit(self.values, self.settings, self.below, neighbours, self.unit)
            if self.settings.paired:
                fitted = self._with_checks(fitted)
            self._fitted = (len(self.observations), fitted)
        return self._fitted[1]

    def _with_checks(self, fitted: Fit) -> Fit:
        """The posterior given pairs of neighbours, allowing for noise of another kind."""
        joint = fitted.change.mass(fitted.gap_prior)
        trusted, misled = (1 - MISLED) * joint, MISLED * np.outer(fitted.gap_prior, joint.sum(axis=0))
        for gap in range(1, len(fitted.tested)):
            low, high = int(fitted.tested[gap - 1]), int(fitted.tested[gap])
            differences = self.differences(low, high)
            if not len(differences) or not self.is_resolved(gap, fitted):
                continue
            change, noise, scale = fitted.expected(gap)
            changes, own = [change, *self._seen_changes(gap, fitted)], scale % np.sum(noise.luck == 0)
            seen = (fitted.log_likelihood[gap - 1, own], fitted.log_likelihood[gap, own])
            equal, changed = weigh_neighbours(differences, changes, fitted.doubt(gap), noise, scale, seen)
            fits = np.tile(equal, (len(joint), 1))
            fits[gap] = changed
            misled *= fits
            if self.reference not in (low, high):  # else the fit has seen them
                trusted *= fits
        joint = (trusted + misled) / (trusted.sum() + misled.sum())
        luck = fitted.noise.luck
        by_luck = np.stack([joint[:, luck == size].sum(axis=1) for size in np.unique(luck)], axis=1)
        by_luck /= np.maximum(by_luck.sum(axis=0), 1e-300)
        return replace(fitted, mass=joint.sum(axis=1), luck=float(joint.sum(axis=0) @ luck), by_luck=by_luck)

    def e_value(self, gap: int) -> float:
        """How much pairs of the neighbours of a gap speak against their being equal."""
        fitted = self.fit()
        differences = self.differences(int(fitted.tested[gap - 1]), int(fitted.tested[gap]))
        _, noise, scale = fitted.expected(gap)
        levels, starts = fitted.sides(gap, self.shape())
        changes = [*np.diff(levels)[starts == fitted.tested[gap]], *self._seen_changes(gap, fitted)]
        return e_value(differences, changes, Expected(noise, scale, self._residuals(gap)))

    def _seen_changes(self, gap: int, fitted: Fit) -> list[float]:
        """How much more the rung after a gap measured than the one before, if each pair says far more than the ends.

        This happens if a later rung undoes a regression in part.
        """
        low, high = (int(fitted.tested[at]) for at in (gap - 1, gap))
        if self.reference in (low, high) or self.reference is None:
            return []
        before, after = self._beside_reference(low), self._beside_reference(high)
        least = FAR_MORE * max(fitted.expected(gap)[0], 0.0)
        if len(after) < 2 or float(after.min() - before.max()) <= least:  # a wild pair is not a change
            return []
        return [float(np.median(after) - np.median(before))]

    def _beside_reference(self, rung: int) -> Array:
        """Differences of a rung to the reference, as the search sees them; shape (pairs,)."""
        sign = 1.0 if self.reference == 0 else -1.0
        first, last = sorted((rung, self.reference or 0))
        return np.asarray(sign * self.differences(first, last))

    def drifts(self) -> bool:
        return self.shape().drift >= SHAPE_SURE and len(self.fit().tested) >= DRIFT_RUNGS + 2

    def ends_differ(self) -> bool:
        """Whether the search may leave the ends: it believes that they differ and, in pairs, their signs say so too."""
        doubt, tired = self.fit().end_doubt, self.ends_are_tired()
        if not self.settings.paired:
            return doubt <= (ENDS_TIRED if tired else ENDS_SEEN)
        if tired:
            return self._signs_tell_ends_apart()
        if doubt > ENDS_SEEN_IN_PAIRS:
            return False
        change, noise, scale = self.fit().expected(self.fit().best)
        return e_value(self.differences(*self.ends), [change], Expected(noise, scale, np.zeros(0))) >= ENDS_SIGNS

    def _signs_tell_ends_apart(self) -> bool:
        """Whether the signs of the pairs say that the ends differ, and as fast as a check of neighbours must."""
        differences = self.differences(*self.ends)
        change, noise, scale = float(np.median(differences)), self.fit().noise, self.fit().expected(self.fit().best)[2]
        value = e_value(differences, [change], Expected(noise, scale, differences - change))
        fast = MOST_CHECKS * math.log(max(value, 1.0)) >= len(differences) * math.log(self.needed)
        return fast and median_interval(differences)[0] > 0

    def ends_are_tired(self) -> bool:
        """Whether the ends have used up their tests."""
        if self.settings.metric is None and not self.settings.deterministic:
            good, bad = self.end_failures()
            if not bad.any():
                return len(bad) >= self.passes_needed and len(good) >= self.least
            return len(good) + len(bad) >= self.settings.max_tests // 2
        return sum(self.count(end) for end in self.tested_ends) >= self.most_end_tests

    def end_failures(self) -> tuple[Array, Array]:
        """Whether each test failed, at the end that the user calls good and at the bad one; 1.0 if it did."""
        first, last = (np.array(self.values.get(end, ())) for end in self.ends)
        if self.settings.seeks_fix:
            return 1 - last, 1 - first
        return first, last

    def _residuals(self, gap: int) -> Array:
        """Residuals of the search's pairs if the culprit is in that gap; shape (pairs,)."""
        fitted, reference = self.fit(), self.reference
        low, high = (int(fitted.tested[at]) for at in (gap - 1, gap))
        levels, starts = fitted.sides(gap, self.shape())
        odd = {low, high} if self._seen_changes(gap, fitted) else set()
        left = [np.zeros(0)]
        for rung in self.values:
            if rung != reference and {rung, reference} != {low, high}:
                first, last = sorted((rung, reference or 0))
                values = self.differences(first, last)
                before, after = levels[np.searchsorted(starts, (first, last), side="right")]
                level = float(np.median(values)) if rung in odd else after - before
                left.append(values - level)
        return np.concatenate(left)

    @property
    def passes_needed(self) -> int:
        """Passes in a row that rule out the failure rate that is looked for."""
        rate = LOOKED_FOR if self.settings.failure_rate is None else self.settings.failure_rate
        return math.ceil(math.log(1 - self.settings.confidence) / math.log1p(-min(rate, 0.999)))

    @property
    def needed(self) -> float:
        return 1 / (1 - self.settings.confidence) - 1e-9

    def needed_for(self, gap: int) -> float:
        """E-value from which on the neighbours of a gap differ: the k-th that are checked have 1 / k^2 of the doubt.

        Of many candidates, one would otherwise pass by chance.
        """
        tested = self.fit().tested
        checked = [pair for pair in self.pairs if self.reference not in pair]
        pair = (int(tested[gap]), int(tested[gap - 1]))
        rank = checked.index(pair) if pair in checked else len(checked)
        return self.needed * (rank + 1) ** 2

    def shape(self) -> Shape:
        """Whether it is one change, two, or a drift; both ends must have results. Exit codes know two levels only."""
        if self.settings.metric is None:
            return Shape(1.0, 0.0, 0.0)
        if self._shaped is None or self._shaped[0] != len(self.observations):
            self._shaped = (len(self.observations), self.fit().shape(self.n_rungs))
        return self._shaped[1]

    def is_resolved(self, gap: int, fitted: Fit | None = None) -> bool:
        fitted = fitted or self.fit()
        return all(self.skips(rung) for rung in range(int(fitted.firsts[gap]), int(fitted.lasts[gap])))

    def lacking(self, gaps: Sequence[int]) -> list[int]:
        """Neighbours of gaps that were run too seldom; of pairs, the rungs after gaps whose check is not over."""
        if self.settings.deterministic:
            return []
        tested = self.fit().tested
        if self.settings.paired:
            return [int(tested[gap]) for gap in gaps if self.e_value(gap) < self.needed_for(gap)]
        least = 4 if self.n_rungs == 2 else 2  # of two rungs no other runs show whether the test is flaky
        neighbours = {int(tested[at]) for gap in gaps for at in (gap - 1, gap)}
        return [rung for rung in sorted(neighbours) if self.count(rung) < least and not self.skips(rung)]

    def concluded(self) -> tuple[int, ...]:
        """The gap of the change, or of both, if only reruns of some rungs are missing."""
        fitted, shape = self.fit(), self.shape()
        gaps: tuple[int, ...] = (fitted.best,)
        mass = float(fitted.mass[fitted.best])
        if shape.pair is not None and shape.single < 0.5 and (shape.two >= SHAPE_SURE or self.odd_rung() is not None):
            gaps = shape.pair.best
            mass = float(shape.pair.mass.max()) if shape.two >= SHAPE_SURE else 0.0
        enough = self.settings.sure
        if self.settings.paired:
            tested = fitted.tested
            checked = any(len(self.differences(int(tested[gap - 1]), int(tested[gap]))) for gap in gaps)
            enough = DOUBTED if checked else CANDIDATE
        if mass >= enough and all(self.is_resolved(gap) for gap in gaps):
            return gaps
        return ()

    def partner(self, rung: int) -> int | None:
        """The rung that a test of `rung` is paired with now: the one before it while the two are checked."""
        if self.reference is None:
            return None
        gaps = self.concluded() if len(self.values) > 2 else ()
        for gap in gaps:
            if rung == self.fit().tested[gap] and rung in self.lacking(gaps):
                return int(self.fit().tested[gap - 1])
        return self.reference

    def shape_gains(self) -> Array:
        """Expected information of one more test of each tested rung about the shape, in nats; shape (rungs,).

        Zero if the shape is known, or would take too many tests to tell.
        """
        fitted, shape = self.fit(), self.shape()
        nothing = np.zeros(len(fitted.tested))
        if self.settings.deterministic or shape.known >= SHAPE_SURE:
            return nothing
        gains = information_of_shape(fitted.noise, fitted.change, fitted.mass, shape)
        spent = np.array([self.count(int(rung)) >= RETESTS for rung in fitted.tested])
        gains[spent | np.array([rung == self.reference or self.skips(int(rung)) for rung in fitted.tested])] = 0.0
        doubt = entropy(np.array([shape.single, shape.two, shape.drift]))
        if spent.sum() >= MOST_SPENT or gains.max() < LEAST_GAIN * doubt:
            return nothing
        return gains

    def odd_rung(self) -> int | None:
        """The rung that tells most about the shape; None if no test is worthwhile."""
        if self.settings.paired and self.shape().single > 1 - MENTIONED:
            return None
        gains = self.shape_gains()
        if gains.any():
            return int(self.fit().tested[np.argmax(gains)])
        return None
