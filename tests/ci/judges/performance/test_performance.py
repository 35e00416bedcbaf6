import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from nightjar_ci.formats.policy import PerformancePolicy
from nightjar_ci.formats.verdict import Verdict
from nightjar_ci.judges.performance.performance import Pair, judge_performance, log_ratio
from nightjar_ci.judges.performance.sequential import decide
from tests.ci.nights import CELL, record

POLICY = PerformancePolicy(delta=0.02)


def pair(number: int, candidate: float | None, reference: float | None) -> Pair:
    def run(seconds: float | None) -> object:
        return None if seconds is None else record(step_times=(9.0, seconds, seconds, seconds))

    return Pair(number=number, candidate=run(candidate), reference=run(reference))  # type: ignore[arg-type]


def judge(times: Sequence[tuple[float | None, float | None]], policy: PerformancePolicy = POLICY) -> Verdict:
    pairs = [pair(number, *both) for number, both in enumerate(times, start=1)]
    return judge_performance(CELL, pairs, "uv:jax==0.10.1", policy)


def noisy(count: int, change: float, sd: float = 0.002) -> list[tuple[float | None, float | None]]:
    rng = np.random.default_rng(3)
    return [
        (0.05 * (1 + change) * math.exp(rng.normal(0, sd)), 0.05 * math.exp(rng.normal(0, sd))) for _ in range(count)
    ]


def test_a_slower_environment_is_a_regression_with_its_ratio_and_interval() -> None:
    verdict = judge(noisy(4, 0.10))
    assert verdict.status == "regressed"
    assert verdict.effect is not None
    assert verdict.interval is not None
    assert verdict.effect.value == pytest.approx(0.10, abs=0.01)
    assert verdict.interval[0] < 0.10 < verdict.interval[1]
    assert verdict.n == 4
    assert verdict.explanation.startswith("Slower: step_time +")


def test_a_faster_environment_is_an_improvement() -> None:
    assert judge(noisy(4, -0.10)).status == "improved"


def test_equal_environments_are_ok_and_the_bound_is_shown() -> None:
    verdict = judge(noisy(4, 0.0))
    assert verdict.status == "ok"
    assert "at most +" in verdict.explanation


def test_a_noisy_machine_gives_no_verdict_after_the_budget() -> None:
    verdict = judge(noisy(12, 0.01, sd=0.05))
    assert verdict.status == "cannot_tell"
    assert verdict.n == 12
    assert "too noisy" in verdict.explanation


def test_higher_throughput_is_better() -> None:
    slower = pair(1, 0.1, 0.05)
    turned = [
        one.model_copy(update={"samples": (one.samples[0].model_copy(update={"better": "higher"}),)})
        for one in (slower.candidate, slower.reference)
        if one is not None
    ]
    ratio = log_ratio(Pair(number=1, candidate=turned[0], reference=turned[1]), "step_time")
    assert ratio == pytest.approx(-math.log(2))


def test_warm_up_steps_do_not_count() -> None:
    slow_start = record(step_times=(100.0, 0.05, 0.05))
    ratio = log_ratio(Pair(number=1, candidate=slow_start, reference=record(step_times=(0.1, 0.05, 0.05))), "step_time")
    assert ratio == pytest.approx(0.0)


def test_a_pair_without_a_result_does_not_count_and_is_named() -> None:
    verdict = judge([*noisy(3, 0.5), (0.05, None)])
    assert verdict.status == "cannot_tell"
    assert "pair 4: no step_time on one side" in verdict.details


def test_sides_in_other_units_are_not_compared_and_named() -> None:
    reference = record(step_times=(9.0, 50.0, 50.0))
    sample = reference.samples[0].model_copy(update={"unit": "ms"})
    odd = Pair(number=1, candidate=record(), reference=reference.model_copy(update={"samples": (sample,)}))
    verdict = judge_performance(CELL, [odd], "uv:jax==0.10.1", POLICY)
    assert verdict.status == "cannot_tell"
    assert "pair 1: step_time in s (lower is better) and in ms (lower)" in verdict.details


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", range(1, 6))
def test_a_run_with_one_broken_step_is_not_compared(broken: float, place: int) -> None:
    times = [9.0, 0.05, 0.05, 0.05, 0.05, 0.05]
    times[place] = broken
    assert log_ratio(Pair(number=1, candidate=record(step_times=times), reference=record()), "step_time") is None


def test_one_wild_pair_of_twelve_does_not_hide_a_regression() -> None:
    times = noisy(12, 0.03)
    times[5] = (0.02, 0.05)
    assert judge(times).status == "regressed"


def test_identical_ratios_decide_as_soon_as_chance_would_seldom_repeat_one() -> None:
    """Timers of few digits give equal ratios where nothing changed."""
    decision = decide([0.1] * 12, POLICY)
    assert decision is not None
    assert (decision.status, decision.pairs) == ("regressed", 8)
    assert decide([0.0] * 4, POLICY).status == "ok"  # type: ignore[union-attr]


def decide_often(sd: float, change: float, trials: int, *, wild: float = 0.0, delta: float = 0.02) -> Counter[str]:
    """Statuses over simulated comparisons: `sd` is between runs, `wild` the share of pairs that are 10 to 50 % off."""
    rng = np.random.default_rng([11, int(sd * 1e6), int(change * 1e6), int(wild * 100)])
    ratios = rng.normal(np.log1p(change), sd * math.sqrt(2), (trials, 12))
    ratios += (
        (rng.random(ratios.shape) < wild) * rng.choice([-1, 1], ratios.shape) * rng.uniform(0.1, 0.5, ratios.shape)
    )
    policy = PerformancePolicy(delta=delta)
    decisions = (decide(list(row), policy) for row in ratios)
    return Counter(decision.status for decision in decisions if decision is not None)


@pytest.mark.parametrize(("sd", "wild"), [(0.003, 0.0), (0.01, 0.0), (0.003, 0.06), (0.03, 0.0)])
def test_equal_environments_are_called_slower_at_most_once_in_a_thousand(sd: float, wild: float) -> None:
    counts = decide_often(sd, 0.0, 6000, wild=wild)
    assert counts["regressed"] <= 12  # 6 are promised; P(> 12 | 1e-3) = 1 %
    assert counts["improved"] <= 12


@pytest.mark.parametrize("sd", [0.001, 0.005, 0.01])
def test_a_slow_down_of_delta_is_passed_as_ok_at_most_twice_in_a_hundred(sd: float) -> None:
    assert decide_often(sd, 0.02, 1500)["ok"] <= 42  # 30 are promised; P(> 42 | 2 %) = 2 %


@pytest.mark.parametrize(("sd", "change"), [(0.001, 0.005), (0.003, 0.01), (0.005, 0.015), (0.01, 0.03)])
def test_power_is_at_least_nine_in_ten(sd: float, change: float) -> None:
    assert decide_often(sd, change, 500, delta=0.75 * change)["regressed"] >= 450
