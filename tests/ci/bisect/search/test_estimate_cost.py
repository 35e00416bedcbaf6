"""The expected cost of a bisection: what is ready is not built, a pair is two runs, times add up."""

from __future__ import annotations

import math

import pytest

from nightjar_ci.bisect.search.estimate_cost import estimate
from nightjar_ci.bisect.search.types import SearchSettings

SURE = SearchSettings(deterministic=True)


@pytest.mark.parametrize("n", [8, 64, 500])
def test_a_test_that_never_errs_takes_two_more_than_the_logarithm(n: int) -> None:
    cost = estimate(n, SURE, build_s=10.0, test_s=3.0, is_ready=lambda rung: False)
    assert math.log2(n) - 1 <= cost.tests <= math.ceil(math.log2(n)) + 2
    assert cost.builds == cost.tests  # each rung is tested once
    assert cost.duration_s == pytest.approx(cost.builds * 10.0 + cost.tests * 3.0)


def test_what_is_ready_is_not_built() -> None:
    cost = estimate(64, SURE, build_s=10.0, test_s=3.0, is_ready=lambda rung: True)
    assert cost.builds == 0
    assert cost.duration_s == pytest.approx(cost.tests * 3.0)
    half = estimate(64, SURE, build_s=10.0, test_s=3.0, is_ready=lambda rung: rung % 2 == 0)
    assert 0 < half.builds < half.tests


def test_a_pair_is_two_runs() -> None:
    settings = SearchSettings(metric="lower", reference="first")
    cost = estimate(16, settings, build_s=0.0, test_s=1.0, is_ready=lambda rung: True)
    assert cost.duration_s == pytest.approx(2 * cost.tests)


@pytest.mark.parametrize("metric", ["lower", "higher"])
def test_a_metric_with_a_clear_change_takes_few_tests_either_way(metric: str) -> None:
    settings = SearchSettings(metric=metric)  # type: ignore[arg-type]
    cost = estimate(64, settings, build_s=0.0, test_s=1.0, is_ready=lambda rung: True)
    assert 6 <= cost.tests <= 20
