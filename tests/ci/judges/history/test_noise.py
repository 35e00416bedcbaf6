"""The size of noise: a standard deviation that outliers do not move, and the tail beyond the highest value."""

import math
from itertools import combinations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import mannwhitneyu, norm

from nightjar_ci.judges.history.last_nights import LONGEST, SHARES, screen_last_nights
from nightjar_ci.judges.history.noise import INNER, INNER_SD, correlate_neighbours, rarity_beyond, robust_sd
from nightjar_ci.judges.history.rank_sum import find_shift, rank_sum_p, rank_sum_tail

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


@pytest.mark.parametrize(("few", "many"), [(1, 1), (1, 7), (2, 2), (4, 3), (3, 6)])
def test_the_tail_counts_every_arrangement(few: int, many: int) -> None:
    places = [sum(place - below for below, place in enumerate(c)) for c in combinations(range(few + many), few)]
    expected = [np.mean([above >= u for above in places]) for u in range(few * many + 1)]
    assert rank_sum_tail(few, many).tolist() == pytest.approx(expected)


@given(
    arrays(np.float64, st.integers(1, 6), elements=st.floats(-1, 1), unique=True),
    arrays(np.float64, st.integers(1, 9), elements=st.floats(2, 3), unique=True),
    st.floats(0, 4),
)
def test_p_is_that_of_mann_and_whitney(
    recent: npt.NDArray[np.float64], reference: npt.NDArray[np.float64], up: float
) -> None:
    recent = recent + up
    if len({*recent, *reference}) == len(recent) + len(reference):
        expected = mannwhitneyu(recent, reference, alternative="greater", method="exact").pvalue
        assert rank_sum_p(recent, reference) == pytest.approx(expected)


@given(arrays(np.float64, 12, elements=st.floats(-5, 5)), arrays(np.float64, 15, elements=st.floats(-5, 5)))
def test_the_shift_is_the_median_difference_and_its_bounds_are_differences(
    after: npt.NDArray[np.float64], before: npt.NDArray[np.float64]
) -> None:
    differences = sorted(a - b for a in after for b in before)
    spread = math.sqrt(12 * 15 * 28 / 12)
    cut = math.floor(90 + norm.ppf(0.025) * spread - 0.5)
    estimate, low, high = find_shift(after, before)
    assert estimate == pytest.approx(np.median(differences))
    assert (low, high) == (differences[cut], differences[-1 - cut])


@pytest.mark.parametrize(("after", "before", "bounded"), [(3, 3, False), (4, 3, False), (4, 4, True), (1, 38, False)])
def test_too_few_values_bound_no_shift(after: int, before: int, bounded: bool) -> None:
    _, low, high = find_shift(np.arange(after, dtype=float), np.arange(before, dtype=float))
    assert (math.isfinite(low), math.isfinite(high)) == (bounded, bounded)


def test_a_smaller_rate_of_misses_makes_a_wider_interval() -> None:
    values = np.random.default_rng(3).normal(0, 1, 40)
    widths = [
        high - low for miss in (0.1, 0.05, 0.002) for _, low, high in [find_shift(values[:20], values[20:], miss=miss)]
    ]
    assert widths == sorted(widths)
    assert len(set(widths)) == 3
