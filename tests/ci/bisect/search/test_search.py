"""The search of a bisection: the documented example, ends, noise, what cannot be tested, and the rivals' faults."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import betainc

from nightjar_ci.bisect.search.conclude import WANTED_ODDS, conclude, more_tests
from nightjar_ci.bisect.search.next_probes import next_rungs
from nightjar_ci.bisect.search.noise import error_rate_cdf
from nightjar_ci.bisect.search.results import Results
from nightjar_ci.bisect.search.types import Conclusion, Observation, SearchSettings
from nightjar_ci.errors import InputError

Test = Callable[[int], Observation]
IN_PAIRS = SearchSettings(metric="lower", reference="first")


def drive(search: Results, test: Test, build_cost: float = 0.0) -> Conclusion:
    built: set[int] = set()
    while (conclusion := conclude(search)) is None:
        (rung,) = next_rungs(search, 1, lambda rung: 1.0 + (0.0 if rung in built else build_cost))
        built.add(rung)
        search.add(observe(search, test, rung))
    return conclusion


def observe(search: Results, test: Test, rung: int) -> Observation:
    partner = search.partner(rung)
    if partner is None:
        return test(rung)
    return replace(test(rung), against=partner, beside=test(partner).value)


def exit_code(culprit: int, unbuildable: tuple[int, ...] = ()) -> Test:

    def test(rung: int) -> Observation:
        if rung in unbuildable:
            return Observation(rung=rung, outcome="cannot_tell")
        return Observation(rung=rung, outcome="bad" if rung >= culprit else "good")

    return test


def fails_at_random(culprit: int, rate: float, seed: int) -> Test:
    generator = np.random.default_rng(seed)

    def test(rung: int) -> Observation:
        return Observation(rung=rung, outcome="bad" if rung >= culprit or generator.random() < rate else "good")

    return test


def metric(levels: Callable[[int], float], noise: float, seed: int) -> Test:
    generator = np.random.default_rng(seed)
    return lambda rung: Observation(rung=rung, value=levels(rung) * math.exp(noise * generator.normal()))


@given(st.integers(2, 300), st.data())
@settings(max_examples=30, deadline=None)
def test_a_deterministic_search_needs_two_tests_more_than_the_logarithm(n: int, data: st.DataObject) -> None:
    culprit = data.draw(st.integers(1, n - 1))
    conclusion = drive(Results(n, SearchSettings(deterministic=True)), exit_code(culprit))
    assert (conclusion.kind, conclusion.culprit) == ("culprit", culprit)
    assert conclusion.tests <= math.ceil(math.log2(n)) + 2


@given(st.integers(5, 200), st.data())
@settings(max_examples=20, deadline=None)
def test_rungs_that_cannot_be_built_widen_the_answer_and_never_move_it(n: int, data: st.DataObject) -> None:
    culprit = data.draw(st.integers(1, n - 1))
    unbuildable = tuple(data.draw(st.sets(st.integers(1, n - 2), max_size=n // 3)))
    conclusion = drive(Results(n, SearchSettings(deterministic=True)), exit_code(culprit, unbuildable))
    assert conclusion.kind == "culprit"
    assert conclusion.culprits is not None
    first, last = conclusion.culprits
    assert first <= culprit <= last
    assert all(rung in unbuildable for rung in range(first, last))


def test_both_neighbours_of_a_culprit_are_run_twice_unless_deterministic() -> None:
    search = Results(64, SearchSettings())
    conclusion = drive(search, exit_code(20))
    assert conclusion.culprit == 20
    for rung in (19, 20):
        assert sum(seen.rung == rung for seen in search.observations) >= 2


def test_both_ends_are_tested_first() -> None:
    search = Results(64, SearchSettings())
    for _ in range(2):
        (rung,) = next_rungs(search, 1, lambda rung: 1.0)
        search.add(exit_code(20)(rung))
    assert {seen.rung for seen in search.observations} == {0, 63}


def test_a_good_end_that_fails_is_named() -> None:
    conclusion = drive(Results(64, SearchSettings()), exit_code(0))
    assert conclusion.kind == "good_end_is_bad"
    assert conclusion.tests <= 20


@pytest.mark.parametrize(("rate", "passes"), [(None, 44), (0.1, 44), (0.05, 90)])
def test_a_bad_end_that_passes_is_said_to_be_good_only_if_its_user_knows_how_often_it_fails(
    rate: float | None, passes: int
) -> None:
    conclusion = drive(Results(64, SearchSettings(failure_rate=rate)), exit_code(64))
    assert conclusion.kind == ("too_rare" if rate is None else "bad_end_is_good")
    assert f"The bad end passes all of {passes} tests" in conclusion.message
    assert rate is not None or "fails in less than 10% of them. About 88 more tests" in conclusion.message


def test_a_metric_that_is_the_same_at_both_ends_is_no_change_and_ends_soon() -> None:
    conclusion = drive(Results(64, IN_PAIRS), metric(lambda rung: 5.0, 0.01, seed=1))
    assert conclusion.kind == "no_change"
    assert conclusion.tests <= 60


@pytest.mark.parametrize("better", ["lower", "higher"])
def test_a_metric_finds_the_culprit_and_both_levels(better: Literal["lower", "higher"]) -> None:
    worse = 1.1 if better == "lower" else 1 / 1.1
    search = Results(100, replace(IN_PAIRS, metric=better))
    conclusion = drive(search, metric(lambda rung: 2.0 * (worse if rung >= 77 else 1.0), 0.01, seed=3))
    assert conclusion.culprit == 77
    assert conclusion.good is not None
    assert conclusion.bad is not None
    assert conclusion.good.mean == pytest.approx(2.0, rel=0.01)
    assert conclusion.bad.mean == pytest.approx(2.0 * worse, rel=0.01)
    assert conclusion.effect == pytest.approx(worse - 1, abs=0.02)


def test_an_interrupted_search_resumes_from_its_observations() -> None:
    first, second = (Results(32, IN_PAIRS) for _ in range(2))
    test = metric(lambda rung: 1.0 if rung < 9 else 1.1, 0.01, seed=4)
    while not conclude(first):
        (rung,) = next_rungs(first, 1, lambda rung: 1.0)
        assert next_rungs(second, 1, lambda rung: 1.0) == [rung]
        first.add(observe(first, test, rung))
        second = Results(32, IN_PAIRS)
        for seen in first.observations:
            second.add(seen)
    assert conclude(second) == conclude(first)


def test_parallel_workers_split_the_ladder() -> None:
    search = Results(256, SearchSettings())
    for rung in (0, 255, 0, 255, 0, 255):
        search.add(exit_code(99)(rung))
    probes = next_rungs(search, 3, lambda rung: 1.0)
    assert sorted(probes) == pytest.approx([64, 128, 191], abs=15)
    assert not set(probes) & set(next_rungs(search, 2, lambda rung: 1.0, running=probes))


def test_a_cached_rung_is_run_again_before_another_is_built() -> None:
    builds = {0.0: 0, 50.0: 0}
    for cost in builds:
        for seed in range(2):
            conclusion = drive(Results(1024, SearchSettings()), fails_at_random(700, 0.2, seed), cost)
            assert conclusion.culprit == 700
            builds[cost] += conclusion.builds
    assert builds[50.0] <= 2 * 13 < builds[0.0]


@pytest.mark.parametrize(
    ("levels", "cell"),
    [((1.0, 1.04, 1.1), 0.005), ((1.0, 2.0, 1.2), 0.03)],  # more than half of the first change is taken back
)
def test_two_changes_in_one_range_are_said_to_be_two(levels: tuple[float, float, float], cell: float) -> None:
    test = metric(lambda rung: levels[(rung >= 12) + (rung >= 25)], 0.002, seed=9)
    conclusion = drive(Results(32, IN_PAIRS), test)
    assert (conclusion.kind, conclusion.culprits, conclusion.second) == ("two_changes", (12, 12), (25, 25))
    assert conclusion.middle is not None
    assert conclusion.middle.mean == pytest.approx(levels[1], abs=cell)  # of the grid


def test_one_wild_run_does_not_move_the_culprit() -> None:
    sound = metric(lambda rung: 1.0 if rung < 90 else 1.05, 0.005, seed=12)
    seen: list[int] = []

    def test(rung: int) -> Observation:
        seen.append(rung)
        wild = len(seen) in (2, 9)  # one at an end, one in the search
        return Observation(rung=rung, value=3.0) if wild else sound(rung)

    assert drive(Results(128, IN_PAIRS), test).culprit == 90


@pytest.mark.parametrize(("better", "kind"), [("lower", "good_end_is_bad"), ("higher", "culprit")])
def test_ends_of_a_metric_that_never_varies_are_judged_by_one_test_each(
    better: Literal["lower", "higher"], kind: str
) -> None:
    search = Results(64, SearchSettings(metric=better, deterministic=True))
    conclusion = drive(search, lambda rung: Observation(rung=rung, value=2.0 if rung < 20 else 1.0))
    assert conclusion.kind == kind
    assert conclusion.tests == (2 if kind == "good_end_is_bad" else 8)
    same = drive(Results(64, search.settings), lambda rung: Observation(rung=rung, value=5.0))
    assert (same.kind, same.tests) == ("no_change", 2)
    assert same.message == "The ends do not differ: 5 at the good end, 5 at the bad one."


# Regressions of other tools, by symptom.


@pytest.mark.parametrize("value", [math.nan, math.inf, None])
def test_a_metric_that_is_missing_or_not_a_number_is_skipped_and_not_repeated_for_ever(value: float | None) -> None:
    sound = metric(lambda rung: 1.0 if rung < 30 else 2.0, 0.001, seed=6)
    search = Results(64, IN_PAIRS)
    conclusion = drive(search, lambda rung: Observation(rung=rung, value=value) if rung in (29, 32) else sound(rung))
    assert conclusion.kind == "culprit"
    assert conclusion.culprits == (29, 30)
    assert [seen.rung for seen in search.observations].count(29) == 1
    assert search.skips(29)


def test_a_test_that_often_cannot_tell_still_finds_the_culprit() -> None:
    generator = np.random.default_rng(13)
    sound = metric(lambda rung: 1.0 if rung < 90 else 1.1, 0.01, seed=13)
    search = Results(128, IN_PAIRS)
    conclusion = drive(
        search, lambda rung: Observation(rung=rung, value=math.nan) if generator.random() < 0.3 else sound(rung)
    )
    assert conclusion.culprits is not None
    assert conclusion.culprits[0] <= 90 <= conclusion.culprits[1]


@pytest.mark.parametrize("levels", [(0.0, 5.0), (-3.0, 2.0), (0.0, 1e-12), (1e9, 1e9 + 1), (5.0, 5e6)])
def test_any_unit_of_a_metric_that_never_varies_will_do(levels: tuple[float, float]) -> None:
    search = Results(64, SearchSettings(metric="lower", deterministic=True))
    conclusion = drive(search, lambda rung: Observation(rung=rung, value=levels[rung >= 20]))
    assert conclusion.culprit == 20
    assert conclusion.tests <= 8


def test_an_end_that_cannot_be_tested_ends_the_search_with_that_message() -> None:
    conclusion = drive(Results(64, SearchSettings()), exit_code(30, unbuildable=(63,)))
    assert conclusion.kind == "unbuildable"
    assert "bad end" in conclusion.message


def test_the_budget_of_tests_holds_over_the_whole_ladder() -> None:
    generator = np.random.default_rng(8)
    search = Results(1024, SearchSettings(max_tests=20))
    conclusion = drive(
        search,
        lambda rung: Observation(rung=rung, outcome="bad" if (rung >= 41) ^ (generator.random() < 0.3) else "good"),
    )
    assert conclusion.kind == "budget_out"
    assert conclusion.tests == 20


def test_nonsense_is_refused_with_what_was_expected() -> None:
    with pytest.raises(InputError, match=r"rung 64 is not on a ladder of 64 rungs"):
        Results(64, SearchSettings()).add(Observation(rung=64, outcome="good"))
    with pytest.raises(InputError, match=r"failure rate: 1\.5"):
        SearchSettings(failure_rate=1.5)


def test_the_prior_of_error_rates_is_the_beta_distribution_of_scipy() -> None:
    rates = np.array([0.0, 1e-12, 1e-3, 0.3, 0.5, 0.97, 1.0])
    np.testing.assert_allclose(error_rate_cdf(rates), betainc(0.5, 1.5, rates), rtol=1e-12)


def test_ends_that_differ_too_rarely_say_how_many_more_tests_would_tell() -> None:
    def entropy(rate: float) -> float:
        return -rate * math.log(rate) - (1 - rate) * math.log(1 - rate)

    low, high = 0.5 / 11, 3.5 / 11  # of 0 and 3 of 10 tests
    information = entropy((low + high) / 2) - (entropy(low) + entropy(high)) / 2
    assert more_tests(np.zeros(10), np.repeat([1.0, 0.0], [3, 7])) == math.ceil(math.log(WANTED_ODDS) / information)
