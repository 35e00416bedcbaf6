"""The last nights, against the formula written out night by night."""

import numpy as np
import pytest

from nightjar_ci.judges.history.last_nights import LONGEST, SHARES, screen_last_nights
from nightjar_ci.judges.history.noise import rarity_beyond
from nightjar_ci.judges.history.rank_sum import rank_sum_p


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
