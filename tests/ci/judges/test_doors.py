"""Error rates and thresholds through the functions that a night calls, against formulas and SciPy of their own.

Each test fails where an error rate is not shared, a p is not multiplied, a floor is ignored, a threshold has moved or
a trigger has become rarer, whichever inner function the mistake is in.
"""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from nightjar_ci.formats.policy import ConvergencePolicy, HistoryPolicy, PerformancePolicy
from nightjar_ci.formats.verdict import Verdict
from nightjar_ci.judges.convergence.convergence import judge_convergence
from nightjar_ci.judges.history.change_points import STRETCHES, find_changes
from nightjar_ci.judges.performance.performance import Pair, judge_performance
from tests.ci.judges.judged import judge_history, make_series
from tests.ci.nights import CELL, STEPS, baseline, losses, record

Array = npt.NDArray[np.float64]
HISTORY = HistoryPolicy()
OTHER = "another kind"  # of device, so that seeds are compared by the envelope and the end


def tell(values: Array, pairs: Sequence[Pair] = (), policy: HistoryPolicy = HISTORY) -> Verdict:
    rerun = ("then", pairs) if pairs else None
    verdict = judge_history(make_series(np.exp(values), f"{CELL}/step_time"), policy, rerun=rerun)
    assert verdict is not None
    return verdict


def make_pairs(ratios: Sequence[float]) -> list[Pair]:
    return [
        Pair(
            number=number,
            candidate=record(step_times=(9.0, math.exp(ratio), math.exp(ratio))),
            reference=record(step_times=(9.0, 1.0, 1.0)),
        )
        for number, ratio in enumerate(ratios, start=1)
    ]


# Convergence: envelope and end share alpha.


def test_the_end_of_a_curve_is_compared_at_its_share_of_alpha() -> None:
    policy = ConvergencePolicy(alpha=0.01, margin=0.5, too_good=0.9)
    verdict = judge_convergence(CELL, "loss", [record(77, device=OTHER)], baseline(), policy)
    last = round(policy.final_fraction * STEPS)
    old = np.array([np.log(losses(seed)[-last:]).mean() for seed in range(10)])
    shift = float(np.log(losses(77)[-last:]).mean() - old.mean())
    half = stats.t.ppf(1 - 0.01 / 2, 9) * old.std(ddof=1) * math.sqrt(1 + 1 / 10)
    expected = f"({100 * math.expm1(shift - half):+.3g} % to {100 * math.expm1(shift + half):+.3g} %)"
    assert any(expected in text for text in (verdict.explanation, *verdict.details))


@pytest.mark.parametrize(("factor", "leaves"), [(0.97, False), (1.03, True)])
def test_a_curve_leaves_the_envelope_at_half_of_alpha_shared_among_blocks(factor: float, leaves: bool) -> None:
    policy = ConvergencePolicy(alpha=0.01, margin=5.0)
    curves = np.log([losses(seed) for seed in range(10)])
    means = curves.reshape(10, policy.blocks, -1).mean(axis=2)
    width = stats.t.ppf(1 - 0.01 / 2 / policy.blocks, 9) * means.std(axis=0, ddof=1) * math.sqrt(1 + 1 / 10)
    block = STEPS // policy.blocks
    values = curves.mean(axis=0)
    values[5 * block : 6 * block] += factor * width[5]
    verdict = judge_convergence(
        CELL, "loss", [record(77, values=np.exp(values).tolist(), device=OTHER)], baseline(), policy
    )
    assert (verdict.status == "regressed") == leaves
    assert verdict.explanation.startswith(f"From step {5 * block} on") == leaves


# Pairs: looks, factors of p, and the floor.


def test_the_p_of_pairs_counts_both_sides_and_all_looks() -> None:
    ratios = [0.02, 0.021, 0.0205, 0.0195]
    tail = stats.t.sf(np.mean(ratios) / (np.std(ratios, ddof=1) / 2), 3)
    alone = judge_performance(CELL, make_pairs(ratios), "then", PerformancePolicy())
    assert alone.p == pytest.approx(2 * 3 * tail, rel=1e-6)
    quiet = np.random.default_rng(0).normal(0, 0.003, 80)
    quiet[-1] = 0.1
    both = tell(quiet, make_pairs(ratios))
    assert both.p == pytest.approx(HISTORY.trigger * 2 * 4 * tail, rel=1e-6)


@pytest.mark.parametrize(("change", "status"), [(0.0028, "ok"), (0.0033, "regressed")])
def test_pairs_below_the_floor_are_no_regression(change: float, status: str) -> None:
    ratios = np.log1p(change) + np.array([1e-6, -1e-6, 0.0, 2e-6])
    verdict = judge_performance(CELL, make_pairs(ratios.tolist()), "then", PerformancePolicy())
    assert verdict.status == status


# History: the trigger, lasting changes and jumps.


@pytest.mark.slow
def test_the_screening_of_unchanged_nights_is_as_rare_as_stated_and_no_rarer() -> None:
    rng = np.random.default_rng(1)
    verdicts = [tell(rng.normal(0, 0.01, 45)) for _ in range(1500)]
    stands_out = np.mean([verdict.status == "cannot_tell" for verdict in verdicts])
    assert 0.03 <= stands_out <= 0.08
    for level in (0.02, 0.05, 0.08):
        share = np.mean([verdict.p is not None and verdict.p <= level for verdict in verdicts])
        assert level / 4 <= share <= level + 3 * math.sqrt(level / 1500)


def test_the_p_of_a_lasting_change_counts_every_night_and_stretch_that_was_scanned() -> None:
    values = np.random.default_rng(2).normal(0, 0.01, 100)
    values[80:] += 0.02
    (change,) = find_changes(values)
    verdict = tell(values)
    assert verdict.status == "regressed"
    assert verdict.p == pytest.approx(min(1.0, change.p * 100 * len(STRETCHES)))


@pytest.mark.parametrize(("change", "status"), [(0.0025, "ok"), (0.0035, "regressed")])
def test_a_lasting_change_below_the_floor_is_nothing(change: float, status: str) -> None:
    values = np.random.default_rng(3).normal(0, 1e-5, 100)
    values[70:] += np.log1p(change)
    assert tell(values).status == status


@pytest.mark.parametrize(("size", "status"), [(1.06, "cannot_tell"), (1.08, "regressed")])
def test_a_jump_is_at_least_as_large_as_the_policy_says(size: float, status: str) -> None:
    values = np.random.default_rng(4).normal(0, 1e-4, 43)
    values[40:] += math.log(size)
    assert tell(values).status == status


def test_a_step_of_three_sd_is_found_by_its_tenth_night_and_nothing_in_unchanged_series() -> None:
    rng = np.random.default_rng(5)
    stepped = 0.01 * rng.normal(size=(150, 70))
    stepped[:, 60:] += 0.03
    found = np.mean([tell(row).status == "regressed" for row in stepped])
    assert found >= 0.6
    assert not any(tell(row).status == "regressed" for row in 0.01 * rng.normal(size=(150, 70)))
