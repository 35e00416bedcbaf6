"""The choice of the next rungs: nothing inside of the ladder is tested before its ends differ."""

import math
from collections import Counter

import numpy as np
import pytest

from nightjar_ci.bisect.search.conclude import conclude
from nightjar_ci.bisect.search.next_probes import are_ends_done, next_rungs, urgent
from nightjar_ci.bisect.search.results import Results
from nightjar_ci.bisect.search.types import Conclusion, Observation, SearchSettings

RUNGS = 64
SETTINGS = {
    "exit code": SearchSettings(),
    "pairs": SearchSettings(metric="lower", reference="first"),
}


def measure(search: Results, rung: int, culprit: int | None, kind: str, random: np.random.Generator) -> Observation:
    """A test that fails in 20 % of runs, from the culprit on always; or a metric, from there on 10 % slower."""

    def value(index: int) -> float:
        return 10 * (1 + 0.1 * is_bad(index)) * math.exp(0.02 * random.normal())

    def is_bad(index: int) -> bool:
        return culprit is not None and index >= culprit

    if kind == "exit code":
        return Observation(rung=rung, outcome="bad" if is_bad(rung) or random.random() < 0.2 else "good")
    partner = search.partner(rung)
    assert partner is not None
    return Observation(rung=rung, value=value(rung), against=partner, beside=value(partner))


def bisect(kind: str, seed: int, culprit: int | None, workers: int = 1) -> tuple[Conclusion, Counter[str]]:
    random, search = np.random.default_rng(seed), Results(RUNGS, SETTINGS[kind])
    running: list[int] = []
    tests: Counter[str] = Counter()
    while (conclusion := conclude(search)) is None:
        for rung in next_rungs(search, workers - len(running), lambda rung: 1.0, running):
            is_end = rung in (0, RUNGS - 1)
            assert is_end or are_ends_done(search), f"rung {rung} was asked for before the ends differed"
            tests["end" if is_end else "inside"] += 1
            running.append(rung)
        search.add(measure(search, running.pop(int(random.integers(len(running)))), culprit, kind, random))
    return conclusion, tests


@pytest.mark.parametrize("workers", [1, 5])
@pytest.mark.parametrize("kind", ["exit code", "pairs"])
def test_no_rung_inside_is_tested_before_the_ends_differ(kind: str, workers: int) -> None:
    for seed in range(1 if kind == "pairs" else 4):
        assert bisect(kind, seed, culprit=23, workers=workers)[0].culprit == 23
        assert bisect(kind, seed, culprit=None, workers=workers)[0].kind in ("no_change", "too_rare")


@pytest.mark.parametrize(("kind", "most_inside"), [("exit code", 0.1), ("pairs", 0.15)])
@pytest.mark.slow
def test_ends_that_are_alike_cost_tests_of_the_ends_and_hardly_any_other(kind: str, most_inside: float) -> None:
    counts = [bisect(kind, seed, culprit=None)[1] for seed in range(24)]
    inside, ends = (sum(count[what] for count in counts) for what in ("inside", "end"))
    assert inside <= most_inside * (inside + ends)
    assert sum(count["inside"] > 0 for count in counts) <= 8  # 24 / 6.5 are expected at most


def test_of_a_drift_in_pairs_only_the_ends_are_left_to_test_but_not_of_other_shapes_or_tests() -> None:
    random, asked = np.random.default_rng(0), dict[str, list[int]]()
    for shape in ("drift", "step"):
        search = Results(12, SETTINGS["pairs"])
        for rung in [0, 11, *range(12)] * 6:
            level = rung / 11 if shape == "drift" else float(rung >= 7)
            value = 10 * math.exp(level + 0.01 * random.normal())
            search.add(Observation(rung=rung, value=value, against=0, beside=10 * math.exp(0.01 * random.normal())))
        asked[shape] = urgent(search)
    assert asked["drift"] == list(search.tested_ends)
    assert asked["step"] != asked["drift"]


def test_the_reference_of_pairs_is_never_tested_alone() -> None:
    search = Results(20, SETTINGS["pairs"])
    ratios = {19: (1.43, 1.40, 1.43), 9: (0.97,), 14: (1.39,), 11: (0.94,), 13: (1.45,), 12: (0.95,)}
    beside = {13: (1.58, 1.56, 1.44, 1.42, 1.55, 1.59, 1.37)}  # in pairs with rung 12
    for against, pairs in ((0, ratios), (12, beside)):
        for rung, values in pairs.items():
            for value in values:
                search.add(Observation(rung=rung, value=value, against=against, beside=1.0))
    assert search.shape_gains().any()  # two changes, or a drift, are possible
    assert urgent(search) == next_rungs(search, 1, lambda rung: 1.0) == [12]
