"""The check of an answer on its neighbours: what it bets over every choice of signs, and what one pair may do."""

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightjar_ci.bisect.search.neighbours import GAMBLERS, MOST_OF_A_PAIR, Expected, e_value, likelihood_ratios
from nightjar_ci.bisect.search.noise import pair_noise

NOISE = pair_noise([np.array([0.0]), np.array([0.01, -0.012, 0.003]), np.array([0.2, 0.21, 0.19, 0.22])])
EXPECTED = Expected(noise=NOISE, scale=2, residuals=np.array([0.01, -0.02, 0.005]))


@given(st.lists(st.floats(-0.5, 0.5), min_size=1, max_size=6), st.floats(0.01, 0.5), st.booleans())
def test_over_all_signs_the_bet_is_fair(sizes: list[float], change: float, down: bool) -> None:
    bets = [
        e_value(np.array(sizes) * np.array(signs), [-change if down else change], EXPECTED)
        for signs in product((1, -1), repeat=len(sizes))
    ]
    assert np.mean(bets) == pytest.approx(1.0)  # Ville's inequality needs no more than that


def test_the_stakes_add_up_to_one() -> None:
    assert sum(share for share, _ in GAMBLERS) == pytest.approx(1.0)


def test_seven_pairs_that_agree_are_enough_for_a_hundred_and_six_are_not() -> None:
    change = 0.2
    bets = [e_value(np.full(pairs, change), [change], EXPECTED) for pairs in (6, 7)]
    assert bets[0] < 100 <= bets[1]
    assert bets[1] == pytest.approx(sum(share * (2 * most) ** 7 for share, most in GAMBLERS))


def test_signs_against_the_change_speak_against_it() -> None:
    assert e_value(np.full(3, -0.2), [0.2], EXPECTED) < 0.1
    assert e_value(np.full(3, -0.2), [-0.2], EXPECTED) > 5


def test_without_pairs_or_without_a_change_nothing_is_bet() -> None:
    assert e_value(np.array([]), [0.2], EXPECTED) == 1.0
    assert e_value(np.array([0.2]), [0.0], EXPECTED) == 1.0


def test_what_the_pairs_left_widens_the_expected_noise() -> None:
    wild = Expected(noise=NOISE, scale=2, residuals=np.array([0.4, -0.4, 0.4, -0.4]))
    sure, unsure = (e_value(np.full(4, 0.2), [0.2], expected) for expected in (EXPECTED, wild))
    assert unsure < sure


def test_half_of_the_expected_noise_is_the_searchs_and_half_what_was_left() -> None:
    width = NOISE.scales[2]
    fitted = float(Expected(noise=NOISE, scale=2, residuals=np.array([])).density(np.array([0.03]))[0])
    kernels = [math.exp(-0.5 * ((0.03 - at) / width) ** 2) for at in (0.01, -0.02, 0.005, -0.01, 0.02, -0.005)]
    seen = sum(kernels) / 6 / math.sqrt(2 * math.pi) / width
    assert float(EXPECTED.density(np.array([0.03]))[0]) == pytest.approx((fitted + seen) / 2)


def test_one_pair_changes_the_odds_by_no_more_than_it_may() -> None:
    change = np.array([0.2])
    seen = {"one": [0.2], "two": [0.2, 0.2], "none": [0.0], "half": [0.1]}
    ratios = [float(likelihood_ratios(np.array(pairs), change, NOISE, 2)[0]) for pairs in seen.values()]
    assert ratios == pytest.approx([MOST_OF_A_PAIR, MOST_OF_A_PAIR**2, 1 / MOST_OF_A_PAIR, 1.0])
