"""The rank-sum test against every arrangement and against SciPy; the shift against its definition."""

import math
from itertools import combinations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import mannwhitneyu, norm

from nightjar_ci.judges.history.rank_sum import find_shift, rank_sum_p, rank_sum_tail


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
