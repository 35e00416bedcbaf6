"""The luck of rungs: offsets that no number of runs of one rung can tell from a change."""

import math
import re
from collections.abc import Sequence

import numpy as np
import pytest
from scipy import stats

from nightjar_ci.bisect.search.fit import Fit
from nightjar_ci.bisect.search.luck import PRIOR, SIZES, add_luck, weigh_neighbours
from nightjar_ci.bisect.search.noise import metric_log_likelihood, pair_noise
from nightjar_ci.bisect.search.results import MISLED, Results
from nightjar_ci.bisect.search.types import Observation, SearchSettings
from tests.bench.bisect.machines import run_rung_noise
from tests.bench.bisect.worlds import RUNG_NOISES, RungNoise

PAIRS = [np.zeros(1), np.array([0.01, -0.012, 0.003]), np.array([0.1, 0.11, 0.09, 0.12])]
NOISE = pair_noise(PAIRS)
TABLE = np.stack([metric_log_likelihood(NOISE, values).sum(axis=0) for values in PAIRS])

LONG = ("luck of a build 2%", "luck of a build 3%", "a mode sticks", "two changes")  # bench_bisect has them


def fit_levels(levels: Sequence[float], noise: float = 0.01, count: int = 4, first: int = 1) -> Fit:
    """Pairs of each rung from `first` on with rung 0."""
    random = np.random.default_rng(3)
    settings = SearchSettings(metric="lower", reference="first")
    results = Results(len(levels), settings)
    for rung, level in list(enumerate(levels))[first:] * count:
        value = math.exp(level + noise * random.normal())
        results.add(Observation(rung=rung, value=value, against=0, beside=1.0))
    return results.fit()


def test_a_step_among_equal_rungs_is_told_and_one_among_unequal_rungs_is_not() -> None:
    equal = fit_levels([0, 0, 0, 0, 0.1, 0.1, 0.1, 0.1])
    unequal = fit_levels([0, 0.05, -0.04, 0.03, 0.1, 0.06, 0.13, 0.09])
    assert equal.mass[4] > 1 - MISLED
    assert unequal.mass[4] < 0.9
    assert equal.luck < 0.01 < unequal.luck


def test_more_runs_of_the_same_rungs_do_not_help() -> None:
    for count in (4, 40):
        assert fit_levels([0, 0.05, -0.04, 0.03, 0.1, 0.06, 0.13, 0.09], count=count).mass.max() < 0.95


def test_the_answer_for_a_size_of_luck_is_that_of_a_search_which_knows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    levels = [0, 0.02, -0.01, 0.02, 0.1, 0.06, 0.13, 0.09]
    by_luck = fit_levels(levels, first=2).by_luck
    assert by_luck is not None
    for at in range(len(SIZES)):
        monkeypatch.setattr("nightjar_ci.bisect.search.luck.PRIOR", np.where(np.arange(len(SIZES)) == at, 1.0, 1e-30))
        assert fit_levels(levels, first=2).mass == pytest.approx(by_luck[:, at])


def test_a_culprit_says_by_how_much_builds_may_differ() -> None:
    world = next(one for one in RUNG_NOISES if one.name == "luck of a build 0%")
    conclusion = run_rung_noise(world, 3).conclusion
    found = re.fullmatch(r"(0\.\d{3}) if builds of one code differ by 2%, (0\.\d{3}) by 4%", conclusion.caveat)
    assert found is not None  # a change by 10 %: up to half of it
    assert float(found[2]) < float(found[1]) < 0.99 <= conclusion.probability


def test_a_rung_without_luck_keeps_its_likelihood() -> None:
    noise, table = add_luck(NOISE, TABLE, 1.0)
    own = noise.luck == 0
    assert table[:, own] == pytest.approx(TABLE)
    assert noise.outcomes[:, own] == pytest.approx(NOISE.outcomes)
    assert np.exp(noise.log_scale).reshape(len(SIZES), -1).sum(axis=1) == pytest.approx(PRIOR)


@pytest.mark.parametrize("unit", [1.0, 50.0])
def test_an_offset_is_integrated_out_as_scipys_normal_density_does(unit: float) -> None:
    noise, table = add_luck(NOISE, TABLE, unit)
    at = int(np.flatnonzero(noise.luck == SIZES[3] * unit)[1])
    level = 20
    weights = stats.norm(NOISE.levels[level], SIZES[3] * unit).pdf(NOISE.levels)
    expected = np.exp(TABLE[1, 1]) @ weights / weights.sum()
    assert table[1, at, level] == pytest.approx(math.log(expected))


def test_pairs_of_neighbours_tell_a_change_from_luck_only_as_far_as_the_reference_did_not() -> None:
    noise, _ = add_luck(NOISE, TABLE, 1.0)
    nothing = np.zeros(len(noise.levels))
    for count in (6, 60):
        seen = (nothing, nothing)
        equal, changed = weigh_neighbours(np.full(count, 0.1), [0.1], 0.01, noise, 2, seen)
        ratio = dict(zip(noise.luck.tolist(), (changed / equal).tolist(), strict=True))
        assert ratio[0.0] > 1e4
        for size in SIZES[3:]:  # however many pairs: the ratio of two normal densities at the change
            assert ratio[size] == pytest.approx(math.exp(0.1**2 / 4 / size**2), rel=0.3)
    sharp = (np.where(noise.levels == 0, 0.0, -60.0), -(((noise.levels - 0.1) / 0.002) ** 2))
    equal, changed = weigh_neighbours(np.full(6, 0.1), [0.1], 0.01, noise, 2, sharp)
    assert (changed / equal)[noise.luck == SIZES[4]] == pytest.approx(1.0, rel=0.05)  # counted already


@pytest.mark.slow
@pytest.mark.parametrize(
    "noise", [one for one in RUNG_NOISES if not one.name.startswith(LONG)], ids=lambda one: one.name
)
def test_noise_of_rungs_misleads_nobody(noise: RungNoise) -> None:
    trials = [run_rung_noise(noise, seed) for seed in range(8)]
    stated = [trial for trial in trials if trial.conclusion.probability >= 0.99]
    assert sum(trial.wrong for trial in stated) <= 1  # of 8; a hundredth is expected, and the bench counts
