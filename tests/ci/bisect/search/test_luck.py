"""The luck of rungs: offsets that no number of runs of one rung can tell from a change."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from nightjar_ci.bisect.search.change_shapes import TWO
from nightjar_ci.bisect.search.luck import PRIOR, SIZES, STEP, Luck, weigh_luck
from tests.bench.bisect.machines import run_rung_noise
from tests.bench.bisect.worlds import RUNG_NOISES, RungNoise


def pairs_of(levels: list[float], noise: float = 0.01, count: int = 4) -> dict[tuple[int, int], NDArray[np.float64]]:
    """Pairs of each rung with the first one."""
    random = np.random.default_rng(3)
    return {(0, rung): level + noise * random.normal(size=count) for rung, level in enumerate(levels) if rung}


def weigh(levels: list[float], other: int | None = None) -> Luck:
    tested = np.arange(len(levels))
    prior = np.full(len(levels) + 1, 1 / (len(levels) + 1))
    return weigh_luck(pairs_of(levels), tested, prior, unit=1.0, other=other)


def test_a_step_among_equal_rungs_is_told_and_one_among_unequal_rungs_is_not() -> None:
    equal = weigh([0, 0, 0, 0, 0.1, 0.1, 0.1, 0.1])
    unequal = weigh([0, 0.05, -0.04, 0.03, 0.1, 0.06, 0.13, 0.09])
    assert equal.mass[4] > 0.99
    assert unequal.mass[4] < 0.9
    assert equal.size < 0.01 < unequal.size
    assert equal.smallest < 0.1 < unequal.smallest


def test_more_runs_of_the_same_rungs_do_not_help() -> None:
    levels = [0, 0.05, -0.04, 0.03, 0.1, 0.06, 0.13, 0.09]
    prior = np.full(9, 1 / 9)
    for count in (4, 400):
        luck = weigh_luck(pairs_of(levels, count=count), np.arange(8), prior, unit=1.0, other=None)
        assert luck.mass.max() < 0.95


def test_the_mass_of_two_changes_is_that_of_scipys_normal_densities() -> None:
    levels, other = [0, 0.01, 0.1, 0.1, 0.05], 4
    differences = pairs_of(levels, count=2)
    luck = weigh(levels, other)
    design = np.zeros((4, 5))
    for row, (low, high) in enumerate(differences):
        design[row, [low, high]] = -1, 1
    luck = weigh_luck(differences, np.arange(5), np.full(6, 1 / 6), unit=1.0, other=other)
    values = np.array([each.mean() for each in differences.values()])
    residuals = np.concatenate([each - each.mean() for each in differences.values()])
    noise = float(np.sum(residuals**2)) / 4
    joint = np.zeros((2, len(SIZES), 6))
    for number, gap in itertools.product(range(len(SIZES)), range(1, 5)):
        steps = [design @ (np.arange(5) >= gap), design @ (np.arange(5) >= other)]
        covariance = SIZES[number] ** 2 * design @ design.T + noise / 2 * np.eye(4)
        for changes, share in ((1, 1.0), (2, TWO / 6)):
            if changes == 2 and gap == other:
                continue
            whole = covariance + STEP**2 * sum(np.outer(step, step) for step in steps[:changes])
            density = stats.multivariate_normal(np.zeros(4), whole).pdf(values)
            joint[changes - 1, number, gap] = share * PRIOR[number] * density / 6
    assert luck.mass == pytest.approx(joint[1].sum(axis=0) / joint.sum(), abs=1e-6)


def test_a_unit_scales_the_offsets() -> None:
    levels = [0, 0, 0, 0.1, 0.1, 0.1]
    prior = np.full(7, 1 / 7)
    plain = weigh_luck(pairs_of(levels), np.arange(6), prior, unit=1.0, other=None)
    scaled = {place: 50 * values for place, values in pairs_of(levels).items()}
    large = weigh_luck(scaled, np.arange(6), prior, unit=50.0, other=None)
    assert large.mass == pytest.approx(plain.mass)
    assert large.size == pytest.approx(50 * plain.size)
    assert math.isclose(large.smallest, 50 * plain.smallest)


@pytest.mark.slow
@pytest.mark.parametrize("noise", RUNG_NOISES, ids=lambda noise: noise.name)
def test_noise_of_rungs_misleads_nobody(noise: RungNoise) -> None:
    trials = [run_rung_noise(noise, seed) for seed in range(8)]
    stated = [trial for trial in trials if trial.conclusion.probability >= 0.99]
    assert sum(trial.wrong for trial in stated) <= 1  # of 8; a hundredth is expected, and the bench counts
