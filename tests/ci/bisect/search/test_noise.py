"""The noise model against SciPy's densities and its definition: priors, grids, robust spreads."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from nightjar_ci.bisect.search.noise import (
    LEAST_RATE,
    LEAST_SHIFT,
    LEVELS,
    RATES,
    SCALES,
    TAIL,
    TAILS_OF_PAIRS,
    Scale,
    density,
    exact_noise,
    metric_log_likelihood,
    pair_noise,
    rate_log_likelihood,
    rate_noise,
    rate_pairs,
    spread_grid,
    within_spread,
)

RUNGS = [np.array([0.0]), np.array([0.01, -0.02]), np.array([0.5, 0.47, 0.52])]


def test_a_run_is_normal_or_disturbed_with_students_tail() -> None:
    values, levels = np.array([-2.0, 0.3, 7.0]), np.array([0.0, 1.0])
    scales, tails, widths = np.array([0.5, 2.0]), np.array([0.04, 0.5]), np.array([1.5, 9.0])
    densities = density(values, levels, scales, tails, widths)
    for row, value in enumerate(values):
        for scale in range(2):
            for column, level in enumerate(levels):
                core = stats.norm(level, scales[scale]).pdf(value)
                tail = stats.t(2, level, widths[scale]).pdf(value)
                expected = (1 - tails[scale]) * core + tails[scale] * tail
                assert densities[row, scale, column] == pytest.approx(expected)


def test_the_prior_of_failure_rates_is_the_sum_of_the_ways_in_which_a_test_errs() -> None:
    levels = np.array([0.01, 0.2, 0.5, 0.8, 0.99])
    edges = [0.0, 0.105, 0.35, 0.65, 0.895, 1.0]
    errors = np.diff(stats.beta(0.5, 1.5).cdf(edges))
    passes = (errors[::-1] + np.diff(edges)) / 2  # of the bad side, half of whose prior is flat
    expected = np.zeros((5, 5))
    for good in range(5):
        for bad in range(5):
            reliable_good, reliable_bad = float(good == 0), float(bad == 4)
            ways = [
                0.05 * reliable_good * reliable_bad,
                0.35 * errors[good] * (good == 4 - bad),
                0.2 * errors[good] * reliable_bad,
                0.2 * reliable_good * passes[bad],
                0.2 * errors[good] * passes[bad],
            ]
            if levels[bad] - levels[good] >= 0.07:
                expected[good, bad] = sum(ways)
    assert rate_pairs(levels, None) == pytest.approx(expected / expected.sum())


def test_the_prior_of_rates_wants_a_change() -> None:
    assert list(RATES) == pytest.approx(list(1 - RATES[::-1]))
    pairs = rate_noise(deterministic=False).pairs[0]
    rise = RATES[None, :] - RATES[:, None]
    assert pairs[rise < LEAST_RATE - 1e-9].max() == 0
    assert pairs[rise >= LEAST_RATE].min() > 0


def test_failures_are_as_likely_as_the_rate_says() -> None:
    noise = rate_noise(deterministic=False)
    table = np.exp(rate_log_likelihood(noise, np.array([1.0, 0.0]), np.array([0.0, 1.0])))
    assert table[:, 0] == pytest.approx(np.stack([RATES, 1 - RATES]), rel=1e-4)
    assert noise.outcomes[:, 0].sum(axis=0) == pytest.approx(np.ones(len(RATES)))


def test_rungs_of_a_side_may_have_rates_of_their_own() -> None:
    noise = rate_noise(deterministic=False)
    failed, passed = np.array([3.0]), np.array([5.0])
    table = np.exp(rate_log_likelihood(noise, failed, passed))[0]
    for row, alike in enumerate(noise.scales):
        for column, rate in enumerate(noise.levels):
            if alike < 1e5:
                expected = stats.betabinom(8, rate * alike, (1 - rate) * alike).pmf(3) / math.comb(8, 3)
                assert table[row, column] == pytest.approx(expected)
    known = rate_noise(deterministic=False, failure_rate=0.1).pairs[0].sum(axis=0)
    assert RATES[np.argmax(known[:-1])] == pytest.approx(0.1, abs=0.03)
    passes = rate_noise(deterministic=False, failure_rate=0.1, seeks_fix=True).pairs[0].sum(axis=1)
    assert RATES[1 + np.argmax(passes[1:])] == pytest.approx(0.9, abs=0.03)  # of the user's bad end


@pytest.mark.parametrize(("better", "sign"), [("lower", 1), ("higher", -1)])
@pytest.mark.parametrize("log", [True, False])
@given(value=st.floats(0.001, 1000))
def test_more_is_worse_on_the_scale_and_the_way_back_is_exact(better: str, sign: int, log: bool, value: float) -> None:
    scale = Scale(better, log)  # type: ignore[arg-type]
    low, high = scale.apply(np.array([value, 2 * value]))
    assert sign * (high - low) == pytest.approx(math.log(2) if log else value)
    assert scale.undo(float(low)) == pytest.approx(value)


def test_the_spread_is_that_of_repeated_runs_within_their_rungs() -> None:
    spread, freedom = within_spread([np.array([1.0, 3.0]), np.array([10.0, 12.0, 14.0]), np.array([5.0])])
    assert freedom == 3
    assert spread == pytest.approx(math.sqrt((1 + 1 + 4 + 0 + 4) / 3))
    assert within_spread([np.array([1.0]), np.array([2.0])]) == (0.0, 0)


def test_one_wild_run_moves_the_spread_no_further_than_the_cut() -> None:
    quiet = [np.array([-1.0, 0.0, 1.0])] * 5
    wild = [*quiet, np.array([0.0, -1.0, 1000.0])]
    residuals = np.concatenate([*quiet, [0.0, -1.0, 1000.0]])
    cut = 3 * 1.4826 * np.median(np.abs(residuals)) * math.sqrt(18 / 12)
    expected = math.sqrt((np.abs(residuals[:-1]) ** 2).sum() / 12 + cut**2 / 12)
    spread, freedom = within_spread(wild)
    assert freedom == 12
    assert spread == pytest.approx(expected)


def test_the_grid_of_pairs_covers_both_ends_and_what_lies_beyond() -> None:
    noise = pair_noise(RUNGS)
    assert len(noise.levels) == LEVELS
    assert noise.levels[0] < -0.05  # a tenth of the distance of the ends
    assert noise.levels[-1] > 0.55
    assert noise.outcomes.sum(axis=0) == pytest.approx(np.ones((2 * SCALES, LEVELS)))
    rise = noise.levels[None, :] - noise.levels[:, None]
    for scale in range(2 * SCALES):
        assert ((noise.pairs[scale] > 0) == (rise >= LEAST_SHIFT * noise.scales[scale])).all()
        assert set(np.unique(noise.pairs[scale])) <= {0.0, 1 / LEVELS**2}


@pytest.mark.parametrize("better", [1, -1])
def test_a_wild_rung_stretches_the_grid_by_no_more_than_the_ends_are_apart(better: int) -> None:
    rungs = [np.array([1.0]), np.array([100.0]), np.array([-100.0]), np.array([1.5])][::better]
    levels = exact_noise(rungs).levels
    assert (levels[0], levels[-1]) == pytest.approx((1.0 - 0.5 - 0.05, 1.5 + 0.5 + 0.05))


def test_a_metric_that_does_not_vary_has_the_scale_of_its_grid() -> None:
    noise = exact_noise([np.array([1.0]), np.array([2.0])])
    assert noise.scales == pytest.approx([noise.levels[1] - noise.levels[0]])


def test_the_likelihood_is_highest_at_the_level_of_the_value() -> None:
    noise = pair_noise(RUNGS)
    table = metric_log_likelihood(noise, noise.levels[[7, 30]])
    assert table.argmax(axis=2).tolist() == [[7] * 2 * SCALES, [30] * 2 * SCALES]
    assert np.exp(table[0, 2, 7]) == pytest.approx(
        (1 - TAIL) / math.sqrt(2 * math.pi) / noise.scales[2] + TAIL / (2 * math.sqrt(2)) / noise.widths[2]
    )


def test_the_reference_of_pairs_has_a_level_of_its_own_and_half_may_be_disturbed() -> None:
    noise = pair_noise([np.array([0.0]), np.array([0.01, -0.02, 0.005]), np.array([0.4, 0.41])])
    assert 0.0 in noise.levels
    assert len(noise.scales) == 2 * SCALES
    assert noise.tails == pytest.approx(np.repeat(TAILS_OF_PAIRS, SCALES))
    assert noise.scales[:SCALES] == pytest.approx(noise.scales[SCALES:])
    assert np.exp(noise.log_scale).sum() == pytest.approx(1.0)


def test_disturbed_pairs_do_not_widen_the_core() -> None:
    rng = np.random.default_rng(5)
    quiet = rng.normal(0, 0.01, 40)
    wild = np.where(rng.random(40) < 0.4, rng.choice([-0.3, 0.3], 40), quiet)
    ends = np.array([0.0]), np.array([0.5])
    calm, loud = (pair_noise([ends[0], values, ends[1]]) for values in (quiet, wild))
    assert loud.scales[0] < 3 * calm.scales[0]
    assert loud.widths[-1] >= 0.29  # the disturbed ones lie out there
    assert calm.widths == pytest.approx(3 * calm.scales)


@pytest.mark.parametrize(
    ("spread", "freedom", "least", "widest"), [(0.1, 50, 0.001, 1.0), (0.1, 2, 0.001, 0.3), (0.0, 0, 0.02, 0.5)]
)
def test_scales_lie_about_what_was_seen_and_reach_the_widest(
    spread: float, freedom: int, least: float, widest: float
) -> None:
    grid = spread_grid(spread, freedom, least, widest)
    doubt = min(math.log(3), 3 / math.sqrt(2 * max(freedom, 1)))
    high = min(max(least, spread * math.exp(doubt)), widest)
    assert len(grid) == SCALES
    assert np.diff(grid).min() > -1e-12
    assert grid[0] == pytest.approx(max(least, spread * math.exp(-doubt)))
    assert grid[-1] == pytest.approx(widest)
    assert grid[-2] == pytest.approx(high) or high > 0.7 * widest
    if high > 0.7 * widest:
        assert grid[1] / grid[0] == pytest.approx(grid[-1] / grid[-2])
