"""What does the algorithm of JAX-Toolbox's triage tool answer? A re-implementation, written from reading its source.

In: versions of some packages with dates, and a function that tests a choice of versions. Out: the package and version
that it blames, or an exception. Kept: the checks of both ends, the search over one package with the others at their
oldest version that is not older, the version that is tried instead of one that does not build, the classifier of two
Gaussians with its thresholds and updates, repetitions where it is in doubt, the blame check, the confirmation runs, and
the search that then follows in the second package. Left out: containers, files, logging.

Source: NVIDIA/JAX-Toolbox:.github/triage/jax_toolbox_triage/logic.py and metric_classifier.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

Verdict = Literal["pass", "fail", "doubt"]
Run = Callable[[dict[str, int]], float | None]
CONFIRMATIONS = 1
REPETITIONS = 3  # more runs where it is in doubt


class GaveUpError(Exception):
    """The tool ends with an error."""


class ExitCodes:
    """All runs pass, or all fail; anything else ends the search."""

    def judge(self, values: Sequence[float]) -> Verdict:
        """The verdict on some runs of one choice of versions."""
        if all(value == 0 for value in values):
            return "pass"
        if all(value != 0 for value in values):
            return "fail"
        raise GaveUpError("mixed results")

    def learn(self, values: Sequence[float], verdict: Verdict) -> None:
        """Nothing to learn."""


@dataclass
class Side:
    """Posterior of one Gaussian's mean: value and weight in runs."""

    mean: float
    runs: float


@dataclass
class Gaussians:
    """Two normal distributions with one variance, a normal-gamma posterior each, and a bound on the odds."""

    passing: Sequence[float]
    failing: Sequence[float]
    threshold: float = 0.997
    sides: dict[Verdict, Side] = field(init=False)
    shape: float = field(init=False)
    rate: float = field(init=False)

    def __post_init__(self) -> None:
        self.sides = {"pass": self.side(self.passing), "fail": self.side(self.failing)}
        least = 1e-4 * (self.sides["pass"].mean - self.sides["fail"].mean) ** 2
        spreads = [sum((x - sum(xs) / len(xs)) ** 2 for x in xs) / 2 for xs in (self.passing, self.failing)]
        self.rate = sum(max(least, spread) for spread in spreads)
        self.shape = (len(self.passing) + len(self.failing)) / 2

    @staticmethod
    def side(values: Sequence[float]) -> Side:
        """From seed values."""
        return Side(sum(values) / len(values), len(values))

    def added(self, side: Side, values: Sequence[float]) -> tuple[float, float]:
        """Mean of the values, and what they add to the rate."""
        n = len(values)
        mean = sum(values) / n
        inner = sum((value - mean) ** 2 for value in values)
        return mean, inner / 2 + side.runs * n * (mean - side.mean) ** 2 / (2 * (side.runs + n))

    def evidence(self, side: Side, values: Sequence[float]) -> float:
        """Log evidence of the values on that side, without what both sides have in common."""
        _, rate = self.added(side, values)
        n = len(values)
        return 0.5 * (math.log(side.runs) - math.log(side.runs + n)) - (self.shape + n / 2) * math.log(self.rate + rate)

    def judge(self, values: Sequence[float]) -> Verdict:
        """The verdict on some runs; where it is clear they are learned."""
        odds = self.evidence(self.sides["pass"], values) - self.evidence(self.sides["fail"], values)
        bound = math.log(self.threshold / (1 - self.threshold))
        if not (odds > bound or odds < -bound):  # so too where a value is not a number
            return "doubt"
        verdict: Verdict = "pass" if odds > 0 else "fail"
        self.learn(values, verdict)
        return verdict

    def learn(self, values: Sequence[float], verdict: Verdict) -> None:
        """Takes in labelled values."""
        side = self.sides[verdict]
        mean, rate = self.added(side, values)
        n = len(values)
        self.sides[verdict] = Side((side.runs * side.mean + n * mean) / (side.runs + n), side.runs + n)
        self.rate += rate
        self.shape += n / 2


Classifier = ExitCodes | Gaussians
Histories = dict[str, list[tuple[int, float]]]


class Triage:
    """One search over versions, with results cached by versions and repetition."""

    def __init__(self, run: Run, classifier: Classifier) -> None:
        self.run = run
        self.classifier = classifier
        self.cache: dict[tuple[tuple[tuple[str, int], ...], int], float | None] = {}

    def test(self, versions: dict[str, int], repetition: int = 0) -> float | None:
        """A result, from the cache if it is there."""
        key = (tuple(sorted(versions.items())), repetition)
        if key not in self.cache:
            self.cache[key] = self.run(versions)
        return self.cache[key]

    def check_end(self, versions: dict[str, int], wanted: Verdict) -> None:
        """Reproduces an end; a doubtful result is taken for what is wanted."""
        for repetition in range(CONFIRMATIONS + 1):
            value = self.test(versions, repetition)
            if value is None:
                raise GaveUpError("an end does not build")
            verdict = self.classifier.judge([value])
            if verdict == "doubt":
                self.classifier.learn([value], wanted)
            elif verdict != wanted:
                raise GaveUpError(f"the {wanted} end could not be reproduced")

    def outcome(self, versions: dict[str, int], runs: int, most: int) -> Verdict:
        """The verdict on a choice of versions, with repetitions where it is doubtful."""
        values = [self.value(versions, repetition) for repetition in range(runs)]
        verdict = self.classifier.judge(values)
        while verdict == "doubt" and len(values) < most:
            values.append(self.value(versions, len(values)))
            verdict = self.classifier.judge(values)
        if verdict == "doubt":
            raise GaveUpError("no unambiguous result")
        return verdict

    def value(self, versions: dict[str, int], repetition: int) -> float:
        """A result that there must be."""
        value = self.test(versions, repetition)
        if value is None:
            raise GaveUpError("a test that could not run")
        return value

    def search(self, histories: Histories, check: bool = True) -> tuple[str, int, int]:
        """The package, its last good version and its first bad one."""
        if check:
            self.check_end({name: history[0][0] for name, history in histories.items()}, "pass")
            self.check_end({name: history[-1][0] for name, history in histories.items()}, "fail")
        names = list(histories)
        while len(histories[names[0]]) == 1:
            names.append(names.pop(0))
        histories = {name: list(histories[name]) for name in names}
        first = names[0]
        while len(histories[first]) > 2:
            at = self.building(histories)
            if at is None:  # nothing between builds
                break
            if self.outcome(choose(histories, at), 1, REPETITIONS + 1) == "pass":
                histories = {name: histories[name][i:] for name, i in at.items()}
            else:
                histories = {name: histories[name][: i + 1] for name, i in at.items()}
        good, bad = histories[first][0][0], histories[first][-1][0]
        blamed = {name: history[-1][0] for name, history in histories.items()} | {first: good}
        if self.outcome(blamed, 1, REPETITIONS + 1) == "fail":
            rest = {name: histories[name] for name in names[1:]} | {first: histories[first][:1]}
            if all(len(history) == 1 for history in rest.values()):
                raise GaveUpError("not enough versions")
            return self.search(rest, check=False)
        if self.outcome(blamed | {first: bad}, 1 + CONFIRMATIONS, 1 + REPETITIONS) != "fail":
            raise GaveUpError("the bad side was not confirmed")
        if self.outcome(blamed, 1 + CONFIRMATIONS, 1 + REPETITIONS) != "pass":
            raise GaveUpError("the good side was not confirmed")
        return first, good, bad

    def building(self, histories: Histories) -> dict[str, int] | None:
        """Indices of versions that build: the middle, or else what lies between it and the nearer end."""
        first = next(iter(histories))
        last = len(histories[first]) - 1
        middle = align(histories, (last + 1) // 2)
        if self.test(choose(histories, middle)) is not None:
            return middle
        known = [self.known_broken(histories, i) for i in range(1, last)]
        low = known.index(True) + 1
        high = last - 1 - known[::-1].index(True)
        for start, stop, up in sorted(((0, low, False), (high, last, True)), key=lambda span: span[1] - span[0]):
            while stop - start > 1:
                at = align(histories, (start + stop + 1) // 2)
                if self.test(choose(histories, at)) is not None:
                    return at
                start, stop = (at[first], stop) if up else (start, at[first])
        return None

    def known_broken(self, histories: Histories, index: int) -> bool:
        """Whether versions were tried and did not build."""
        key = (tuple(sorted(choose(histories, align(histories, index)).items())), 0)
        return key in self.cache and self.cache[key] is None


def align(histories: Histories, index: int) -> dict[str, int]:
    """The first package at an index, the others at their oldest version that is not older, or their last."""
    first, *others = histories
    date = histories[first][index][1]
    found = {
        name: next((i for i, (_, at) in enumerate(histories[name]) if at >= date), len(histories[name]) - 1)
        for name in others
    }
    return {first: index, **found}


def choose(histories: Histories, at: dict[str, int]) -> dict[str, int]:
    """The versions at some indices."""
    return {name: histories[name][i][0] for name, i in at.items()}
