"""The posterior of one change against a sum over every culprit, scale and pair of levels."""

import math

import numpy as np
import pytest

from nightjar_ci.bisect.search.fit import one_change
from nightjar_ci.bisect.search.noise import metric_log_likelihood, pair_noise, rate_log_likelihood, rate_noise


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
