"""The value of a test against the mutual information of its result and the culprit, culprit by culprit."""

import math

import numpy as np
import pytest

from nightjar_ci.bisect.search.fit import one_change
from nightjar_ci.bisect.search.information_gain import Places, entropy, information, rate
from nightjar_ci.bisect.search.noise import metric_log_likelihood, pair_noise, rate_log_likelihood, rate_noise


def h(*shares: float) -> float:
    return -sum(share * math.log(share) for share in shares if share > 0)


def test_entropy_is_in_nats_and_knows_zeros() -> None:
    assert entropy(np.array([[0.5, 0.5], [1.0, 0.0]])).tolist() == pytest.approx([math.log(2), 0.0])


def test_information_is_what_a_result_says_about_the_culprit() -> None:
    noise = rate_noise(deterministic=False)
    failed = np.array([0.0, 0.0, 1.0])
    table = rate_log_likelihood(noise, failed, 1 - failed)
    posterior = one_change(noise, table)
    mass = posterior.mass(np.array([0.1, 0.2, 0.5, 0.2])).sum(axis=1)
    places = Places(rungs=np.array([3, 5, 7]), gaps=np.array([1, 2, 2]), lower=np.array([1.0, 0.25, 0.75]))
    gain, most = information(noise, posterior, mass, places)
    for number, (gap, lower) in enumerate(zip(places.gaps, places.lower, strict=True)):
        # Each gap is cut in two at the rung: where the culprit is at it or before, the rung is bad.
        cases = []
        for culprit in range(len(mass)):
            before = 1.0 if culprit < gap else 0.0 if culprit > gap else lower
            bad, good = (float((cells[culprit] @ noise.levels).sum()) for cells in (posterior.bad, posterior.good))
            cases += [(mass[culprit] * before, bad), (mass[culprit] * (1 - before), good)]
        fails = sum(share * failure for share, failure in cases)
        left = sum(share * h(failure, 1 - failure) for share, failure in cases)
        assert gain[number] == pytest.approx(h(fails, 1 - fails) - left)
        at_or_before = mass[:gap].sum() + lower * mass[gap]
        assert most[number] == pytest.approx(h(at_or_before, 1 - at_or_before))


def test_a_build_is_credited_with_the_tests_that_follow_it() -> None:
    gain, most, build, test = (np.array(numbers) for numbers in ([0.2, 0.2], [0.6, 0.6], [0.0, 20.0], [2.0, 2.0]))
    left = 1 - 0.2 / 0.6
    best = max(0.6 * (1 - left**tests) / (20 + 2 * tests) for tests in range(1, 41))
    assert rate(gain, most, build, test).tolist() == pytest.approx([0.1, best])


def test_one_test_that_tells_all_is_not_repeated() -> None:
    gain, most, build, test = (np.array([number]) for number in (0.6, 0.6, 5.0, 1.0))
    assert rate(gain, most, build, test).tolist() == pytest.approx([0.1])


def test_levels_and_scales_are_integrated_out_as_a_plain_sum_does() -> None:
    rungs = [np.array(values) for values in ([0.0, 0.02], [0.01, -0.02], [0.5, 0.47], [0.52, 0.55])]
    noise = pair_noise(rungs)
    table = np.stack([metric_log_likelihood(noise, values).sum(axis=0) for values in rungs])
    scales, levels = table.shape[1:]
    change = one_change(noise, table)
    for gap in range(len(rungs) + 1):
        joint = np.zeros((scales, levels, levels))
        for scale in range(scales):
            for good in range(levels):
                for bad in range(levels):
                    seen = table[:gap, scale, good].sum() + table[gap:, scale, bad].sum() + noise.log_scale[scale]
                    joint[scale, good, bad] = noise.pairs[scale, good, bad] * math.exp(seen)
        assert change.log_evidence[gap] == pytest.approx(math.log(joint.sum()))
        assert change.good[gap] == pytest.approx(joint.sum(axis=2) / joint.sum(), abs=1e-12)
        assert change.bad[gap] == pytest.approx(joint.sum(axis=1) / joint.sum(), abs=1e-12)


def test_the_mass_of_a_gap_is_its_prior_times_its_evidence() -> None:
    noise = rate_noise(deterministic=False)
    failed = np.array([0.0, 0.0, 1.0])
    table = rate_log_likelihood(noise, failed, 1 - failed)
    change = one_change(noise, table)
    prior = np.array([0.1, 0.0, 0.6, 0.3])
    weights = prior * np.exp(change.log_evidence)
    mass = change.mass(prior).sum(axis=1)
    assert mass == pytest.approx(weights / weights.sum())
    assert mass[1] == 0.0
    assert np.argmax(change.mass(np.full(4, 0.25)).sum(axis=1)) == 2  # the last that passed
