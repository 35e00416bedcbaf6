"""The plain data of the search: its settings, one observation, the conclusion.

Rungs are counted from 0, the known good end, to N - 1, the known bad one. The culprit is the first bad rung.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from nightjar_ci.errors import InputError

Outcome = Literal["good", "bad", "cannot_tell"]
Kind = Literal[
    "culprit",
    "two_changes",
    "drift",
    "no_change",
    "good_end_is_bad",
    "bad_end_is_good",
    "budget_out",
    "unbuildable",
    "too_loud",
    "too_rare",
    "program_change",
]

# Fraction of the requested doubt at which the search stops: noise may be larger than its prior expects.
CAUTION_OF_EXIT_CODE, CAUTION_OF_METRIC = 0.4, 0.6


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSettings:
    """Confidence and budget of a search.

    Attributes:
        confidence: stop when one culprit has this probability.
        deterministic: the test never errs; each rung is run once.
        metric: which values are better, for a test that prints a number; None for an exit code. It is measured in pairs
            unless the test is deterministic.
        failure_rate: of the bad end's tests as its user knows it, to rule out that the end is bad; None if unknown.
        max_tests: give up after this many tests, including inconclusive ones.
        reference: the end that each test is paired with; None if tests run alone. Pairs are for metrics only.
        seeks_fix: the user calls the first rung bad; outcomes, or what is better of a metric, are swapped.
    """

    confidence: float = 0.99
    deterministic: bool = False
    metric: Literal["lower", "higher"] | None = None
    failure_rate: float | None = None
    max_tests: int = 400
    reference: Literal["first", "last"] | None = None
    seeks_fix: bool = False

    @property
    def names(self) -> tuple[str, str]:
        """What the user calls the first end and the last."""
        return ("bad", "good") if self.seeks_fix else ("good", "bad")

    @property
    def paired(self) -> bool:
        return self.reference is not None

    @property
    def sure(self) -> float:
        """Posterior at which the search stops.

        A little less doubt than was asked for: a posterior is right as often as it says on average over its prior of
        noise, and a little less often if tests err more than that prior expects.
        """
        caution = CAUTION_OF_EXIT_CODE if self.metric is None else CAUTION_OF_METRIC
        return 1 - caution * (1 - self.confidence)

    def __post_init__(self) -> None:
        assert self.metric is None or self.paired or self.deterministic, "a metric that varies is measured in pairs"
        if self.failure_rate is not None and not 0 < self.failure_rate <= 1:
            raise InputError(f"failure rate: {self.failure_rate} is not in (0, 1].", "'10%' is one test in ten")


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One test of one rung.

    Attributes:
        outcome: by exit code; None with a metric. `cannot_tell` if the rung could not be built or run.
        value: the metric; None or not finite says that there was none, which is `cannot_tell`.
        against: of a pair, the rung that was measured right before or after, in random order.

    >>> Observation(rung=3, value=float("nan")).tells(metric=True)
    False
    """

    rung: int
    outcome: Outcome | None = None
    value: float | None = None
    against: int | None = None
    beside: float | None = None

    def tells(self, metric: bool) -> bool:
        """Whether it says anything about good or bad."""
        if self.outcome == "cannot_tell":
            return False
        if not metric:
            return self.outcome is not None
        values = (self.value,) if self.against is None else (self.value, self.beside)
        return all(value is not None and math.isfinite(value) for value in values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """The level of one side of the change: mean of the metric, or failure rate, with a 95 % interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """How a bisection ended.

    Attributes:
        culprits: first and last rung that the (first) change may be at; equal unless rungs between cannot be built.
        second: the same for the second of two changes.
        probability: of the conclusion; the largest of any culprit if the budget ran out.
        good, bad: level on either side; None if unknown.
        middle: level between two changes.
        effect: bad minus good; relative to good if the metric is judged on the log scale.
        effect_interval: of 95 %, by the signs of the pairs of the two neighbours alone; None if they are too few.
        caveat: the probability if two builds of one code differ, where it is below the one asked for.
        tests: observations, including inconclusive ones.
    """

    kind: Kind
    message: str
    culprits: tuple[int, int] | None = None
    second: tuple[int, int] | None = None
    probability: float = 0.0
    good: Level | None = None
    bad: Level | None = None
    middle: Level | None = None
    effect: float | None = None
    effect_interval: tuple[float, float] | None = None
    effect_is_relative: bool = False
    caveat: str = ""
    remarks: tuple[str, ...] = ()
    tests: int = 0
    builds: int = 0

    @property
    def culprit(self) -> int | None:
        """The first bad rung, if known exactly."""
        if self.culprits and self.culprits[0] == self.culprits[1]:
            return self.culprits[0]
        return None
