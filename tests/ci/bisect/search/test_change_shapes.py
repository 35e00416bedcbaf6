"""Two changes and a drift against sums over every pair of places and every choice of levels."""

import math

import numpy as np
import pytest

from nightjar_ci.bisect.search.change_shapes import (
    DRIFT,
    LEAST_THIRD,
    QUANTILES,
    RAMPS,
    TWO,
    drift,
    judge_shape,
    log_sum,
    pairs,
    quantiles,
    side_priors,
    two_changes,
)
from nightjar_ci.bisect.search.noise import metric_log_likelihood, pair_noise

RUNGS = [np.array(values) for values in ([0.0, 0.02, -0.01], [0.2, 0.0], [0.55, 0.3], [1.0, 1.03])]
NOISE = pair_noise(RUNGS)
TABLE = np.stack([metric_log_likelihood(NOISE, values).sum(axis=0) for values in RUNGS])
SCALES = range(len(NOISE.scales))
PRIOR = np.array([0.05, 0.3, 0.2, 0.4, 0.05])


def test_the_pairs_of_gaps_are_those_between_the_ends_in_order() -> None:
    first, second = pairs(4)
    assert list(zip(first.tolist(), second.tolist(), strict=True)) == [(1, 2), (1, 3), (2, 3)]


def test_two_changes_are_the_sum_over_places_and_three_levels_that_differ() -> None:
    log_good, log_bad = side_priors(NOISE)
    apart = np.abs(NOISE.levels[:, None] - NOISE.levels)
    joint, prior = {}, {}
    for a, b in ((1, 2), (1, 3), (2, 3)):
        total = 0.0
        for scale in SCALES:
            differ = apart >= LEAST_THIRD * NOISE.scales[scale] - 1e-9  # shape (levels, levels)
            good = np.exp(TABLE[:a, scale].sum(axis=0) + log_good[scale])
            middle = np.exp(TABLE[a:b, scale].sum(axis=0)) / len(NOISE.levels)
            bad = np.exp(TABLE[b:, scale].sum(axis=0) + log_bad[scale])
            total += np.einsum("g,m,b,gm,bm", good, middle, bad, differ, differ) * math.exp(NOISE.log_scale[scale])
        joint[a, b], prior[a, b] = total, PRIOR[a] * PRIOR[b]
    whole = sum(prior.values())
    weights = {pair: joint[pair] * prior[pair] / whole for pair in joint}
    posterior = two_changes(NOISE, TABLE, PRIOR)
    evidence = sum(weights.values())
    assert posterior.log_evidence == pytest.approx(math.log(evidence))
    assert posterior.mass == pytest.approx([weight / evidence for weight in weights.values()])
    assert posterior.best == max(weights, key=lambda pair: weights[pair])
    first, second = posterior.marginals(5)
    assert first == pytest.approx([0, (weights[1, 2] + weights[1, 3]) / evidence, weights[2, 3] / evidence, 0, 0])
    assert second == pytest.approx([0, 0, weights[1, 2] / evidence, (weights[1, 3] + weights[2, 3]) / evidence, 0])


def test_a_drift_is_the_sum_over_ramps_between_quantiles_of_the_ends() -> None:
    places = np.array([0.0, 0.4, 0.7, 1.0])
    log_good, log_bad = side_priors(NOISE)
    likelihoods = []
    for scale in SCALES:
        ends = [np.exp(TABLE[0, scale] + log_good[scale]), np.exp(TABLE[-1, scale] + log_bad[scale])]
        low, high = (
            [float(np.interp(q * end.sum(), np.cumsum(end), np.arange(len(end)))) for q in QUANTILES] for end in ends
        )
        for start, stop in RAMPS:
            for at_good in low:
                for at_bad in high:
                    seen = NOISE.log_scale[scale]
                    for rung in (1, 2):
                        share = min(max((places[rung] - start) / (stop - start), 0.0), 1.0)
                        seen += TABLE[rung, scale, round((1 - share) * at_good + share * at_bad)]
                    likelihoods.append(math.exp(seen) * ends[0].sum() * ends[1].sum())
    posterior = drift(NOISE, TABLE, places)
    assert posterior.log_evidence == pytest.approx(math.log(sum(likelihoods) * len(NOISE.scales) / len(likelihoods)))
    assert posterior.mass.ravel() == pytest.approx(np.array(likelihoods) / sum(likelihoods))


def test_the_shapes_share_their_prior_and_their_evidence() -> None:
    places = np.array([0.0, 0.4, 0.7, 1.0])
    single = -7.0
    shape = judge_shape(NOISE, TABLE, single, PRIOR, places)
    weights = np.array([1 - TWO - DRIFT, TWO, DRIFT]) * np.exp(
        [single, two_changes(NOISE, TABLE, PRIOR).log_evidence, drift(NOISE, TABLE, places).log_evidence]
    )
    assert (shape.single, shape.two, shape.drift) == pytest.approx(tuple(weights / weights.sum()))
    assert shape.known == max(shape.single, shape.two, shape.drift)


def test_two_results_can_only_be_one_change() -> None:
    shape = judge_shape(NOISE, TABLE[[0, -1]], -1.0, np.array([0.1, 0.8, 0.1]), np.array([0.0, 1.0]))
    assert (shape.single, shape.two, shape.drift, shape.pair) == (1.0, 0.0, 0.0, None)


def test_a_forecast_is_what_each_level_yields() -> None:
    posterior = two_changes(NOISE, TABLE, PRIOR)
    forecast = posterior.forecast(NOISE.outcomes, 4)
    assert forecast.sum(axis=1) == pytest.approx(np.ones(4))
    means = forecast @ np.arange(len(NOISE.outcomes))
    assert means[0] < means[3]  # the last rung is worse


def test_the_sum_of_tiny_numbers_does_not_vanish() -> None:
    assert log_sum(np.array([-2000.0, -2000.0])) == pytest.approx(-2000 + math.log(2))


def test_quantiles_are_places_between_levels() -> None:
    cells = np.array([[1.0, 1.0, 2.0]])
    expected = [np.interp(4 * q, [1, 2, 4], [0, 1, 2]) for q in QUANTILES]
    assert quantiles(cells)[0].tolist() == pytest.approx(expected)
