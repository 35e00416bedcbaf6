"""The exchange test: its p against all choices, and against its rate on noise of any kind."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightjar_ci.judges.history.exchangeability import exchange_p, sum_p

Array = npt.NDArray[np.float64]


def exact(scores: Array, recent: int) -> float:
    """The share of all choices whose sum is as high, each of them counted."""
    total = scores[-recent:].sum()
    sums = [scores[list(places)].sum() for places in combinations(range(len(scores)), recent)]
    return float(np.mean(np.array(sums) >= total - 1e-9))


def test_p_is_that_of_all_choices_counted() -> None:
    rng = np.random.default_rng(3)
    compared = []
    for shift in (1.0, 1.5, 2.5):
        scores = rng.normal(0, 1, 20)
        scores[-5:] += shift
        compared.append((sum_p(scores, 5), exact(scores, 5)))
    for approximate, counted in compared:
        assert approximate == pytest.approx(counted, rel=0.15)
    assert min(counted for _, counted in compared) < 0.005


def test_nights_above_all_others_have_the_p_of_one_choice() -> None:
    values = np.concatenate([np.linspace(-1, 1, 30), [5.0, 6.0, 7.0, 8.0]])
    assert sum_p(values, 4) == pytest.approx(1 / math.comb(34, 4))


def test_equal_highest_values_are_as_many_choices() -> None:
    values = np.array([0.0, 1.0, 2.0, 3.0, 9.0, 9.0, 9.0, 9.0])
    assert sum_p(values, 3) == pytest.approx(exact(values, 3)) == pytest.approx(4 / math.comb(8, 3))


def test_a_constant_series_says_nothing() -> None:
    assert exchange_p(np.ones(30), 5) == 1.0


@pytest.mark.parametrize("noise", ["normal", "heavy", "outliers"])
def test_unchanged_series_have_a_small_p_as_rarely_as_it_says(noise: str) -> None:
    rng = np.random.default_rng(7)
    shape = (4000, 40)
    values = rng.normal(0, 1, shape)
    if noise == "heavy":
        values = rng.standard_t(2, shape)
    elif noise == "outliers":
        values += 20 * (rng.random(shape) < 0.05)
    p = np.array([exchange_p(row, 6) for row in values])
    assert (p <= 0.01).sum() <= 62  # 40 are expected; P(> 62) = 0.04 %
    assert (p <= 0.01).sum() >= 5  # two scores share it, so that it may be half


def test_a_shift_needs_fewer_nights_than_by_ranks() -> None:
    values = np.random.default_rng(1).normal(0, 1, 68)
    values[-8:] += 2.5
    assert exchange_p(values, 8) < 1e-6


@given(st.lists(st.floats(-5, 5, width=32), min_size=12, max_size=40), st.integers(1, 8))
def test_p_is_between_that_of_one_choice_and_one(values: list[float], recent: int) -> None:
    p = exchange_p(np.array(values), recent)
    assert 1 / math.comb(len(values), recent) * 0.999 <= p <= 1.0
