"""The size of noise: a standard deviation that outliers do not move, and the tail beyond the highest value."""

import math

import numpy as np
import pytest
from scipy.stats import norm

from nightjar_ci.judges.history.last_nights import LONGEST, SHARES, screen_last_nights
from nightjar_ci.judges.history.noise import INNER, INNER_SD, correlate_neighbours, rarity_beyond, robust_sd
from nightjar_ci.judges.history.rank_sum import rank_sum_p

REFERENCE = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])  # the highest five exceed 3.0 by 3 on average


def test_the_deviation_of_normal_values_is_theirs() -> None:
    assert norm.ppf(0.9) == pytest.approx(1.2816, abs=1e-4)
    values = np.random.default_rng(1).normal(3, 2, (4, 20_000))
    assert robust_sd(values).tolist() == pytest.approx([2.0] * 4, rel=0.03)


def test_a_fifth_of_outliers_moves_it_little() -> None:
    values = np.random.default_rng(2).normal(0, 1, 1000)
    values[::6] = 100.0
    assert 1.0 < float(robust_sd(values)) < 2.2


def test_the_tail_falls_with_the_mean_excess_of_the_five_highest() -> None:
    assert float(rarity_beyond(np.array(11.0), REFERENCE, 0.0)) == pytest.approx(math.exp(-1.0))
    assert float(rarity_beyond(np.array(14.0), np.flip(REFERENCE), 0.0)) == pytest.approx(math.exp(-2.0))


def test_a_value_that_is_not_above_all_is_not_rare() -> None:
    assert rarity_beyond(np.array([8.0, 2.0, -5.0]), np.tile(REFERENCE, (3, 1)), 0.0).tolist() == [1.0] * 3


def test_the_floor_is_the_least_scale() -> None:
    assert float(rarity_beyond(np.array(14.0), REFERENCE, 6.0)) == pytest.approx(math.exp(-1.0))
    assert float(rarity_beyond(np.array(14.0), REFERENCE, 2.0)) == pytest.approx(math.exp(-2.0))
    assert float(rarity_beyond(np.array(1.001), np.ones(8), 0.001)) == pytest.approx(math.exp(-1.0))


def test_the_correlation_of_neighbours_is_estimated_without_bias() -> None:
    rng = np.random.default_rng(5)
    values = rng.normal(0, 1, (2000, 24))
    for night in range(1, 24):
        values[:, night] = 0.6 * values[:, night - 1] + 0.8 * values[:, night]
    assert np.mean([correlate_neighbours(row) for row in values]) == pytest.approx(0.6, abs=0.06)
    assert correlate_neighbours(np.ones(12)) == 0.0


@pytest.mark.parametrize("count", [1, 2, 5, 12, 41, 60, 180])
def test_the_standard_deviation_is_that_of_numpys_quantile_to_the_last_bit(count: int) -> None:
    values = np.random.default_rng(count).normal(size=(50, count))
    away = np.abs(values - np.median(values, axis=-1, keepdims=True))
    assert np.array_equal(robust_sd(values), np.quantile(away, INNER, axis=-1) / INNER_SD)


def test_the_error_is_shared_and_not_spent_twice() -> None:
    assert sum(SHARES.values()) == pytest.approx(1.0)
    assert max(SHARES) == LONGEST == 5


@pytest.mark.parametrize(
    ("count", "choices"), [(11, (1,)), (12, (1, 2)), (13, (1, 2, 3)), (15, (1, 2, 3, 5)), (90, (1, 2, 3, 5))]
)
@pytest.mark.parametrize("raised", [0, 1, 2, 3, 5])
def test_p_is_the_smallest_of_all_choices_that_leave_a_reference(
    count: int, choices: tuple[int, ...], raised: int
) -> None:
    values = np.random.default_rng(count).normal(0, 1, count)
    values[count - raised :] += 4
    expected = {}
    for nights in choices:
        recent, reference = values[count - nights :], values[: count - nights][-60:]
        rarity = rarity_beyond(np.array(min(recent)), reference, 0.5)
        expected[nights] = float(rank_sum_p(recent, reference) * rarity) / SHARES[nights]
        if np.median(recent) - np.median(reference) <= 0.5:
            expected[nights] = 1.0  # below the floor
    least = min(expected, key=lambda nights: expected[nights])
    screened = screen_last_nights(values, 60, floor=0.5)
    assert float(screened.p) == pytest.approx(min(expected[least], 1.0))
    assert int(screened.nights) == least


def test_nothing_is_more_probable_than_one() -> None:
    assert float(screen_last_nights(np.linspace(1, 0, 40), 60).p) == 1.0
