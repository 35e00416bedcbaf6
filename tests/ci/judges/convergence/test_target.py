"""Time to a target: its definition, faster and slower trainings, and targets that are never reached."""

import math

import numpy as np
import pytest

from nightjar_ci.formats.policy import ConvergencePolicy
from nightjar_ci.formats.verdict import Verdict
from nightjar_ci.judges.convergence.convergence import judge_convergence
from nightjar_ci.judges.convergence.target import find_times
from tests.ci.nights import CELL, STEPS, baseline, losses, record

OTHER = "another kind"  # of device: numerics may change, so that the later rules are asked
POLICY = ConvergencePolicy(target=2.6, margin=0.2, too_good=0.5)


def stretched(seed: int, factor: float) -> list[float]:
    """The same curve, every part of it reached `factor` times later."""
    at = np.arange(STEPS) / factor
    return [float(value) for value in np.interp(at, np.arange(STEPS), losses(seed))]


def judge(factor: float, policy: ConvergencePolicy = POLICY, seeds: int = 5) -> Verdict:
    runs = [record(seed, values=stretched(seed, factor), device=OTHER) for seed in range(seeds)]
    return judge_convergence(CELL, "loss", runs, baseline(), policy)


def test_the_time_is_where_the_running_mean_reaches_the_target() -> None:
    curves = np.array([[5.0, 3.0, 1.0, 1.0], [5.0, 5.0, 5.0, 5.0]])
    times = find_times(curves, (10, 20, 30, 40), 2.0, lower=True, window=2)
    assert times[0] == 31  # the mean of the second and third value
    assert math.isnan(times[1])
    two = find_times(np.array([[5.0, 5.0, 1.0], [5.0, 1.0, 1.0]]), (0, 1, 2), 2.0, lower=True, window=1)
    assert two.tolist() == [3, 2]  # each run by its own curve
    assert find_times(np.array([[0.1, 0.9]]), (0, 1), 0.5, lower=False, window=1)[0] == 2


def test_a_training_that_needs_half_as_long_again_is_named() -> None:
    verdict = judge(1.5)
    said = [verdict.explanation, *verdict.details]
    assert verdict.status == "regressed"
    assert any("Time to a loss of 2.6" in line and "the allowed 15 % is exceeded" in line for line in said)


def test_the_same_speed_is_ok_and_a_higher_speed_is_no_regression() -> None:
    assert any("not slower by more than 15 %" in line for line in [judge(1.01).explanation, *judge(1.01).details])
    assert any("faster" in line for line in [judge(0.7).explanation, *judge(0.7).details])


def test_a_target_that_is_never_reached_is_a_regression() -> None:
    verdict = judge(8.0)
    said = [verdict.explanation, *verdict.details]
    assert any(line.startswith("The loss never reaches 2.6 (seeds 0, 1, 2, 3, 4)") for line in said)


def test_a_target_that_the_baseline_misses_decides_nothing() -> None:
    verdict = judge(1.01, ConvergencePolicy(target=0.1, margin=0.2))
    assert verdict.status == "cannot_tell"
    assert "Only 0 of 10 baseline seeds reach a loss of 0.1" in verdict.explanation


@pytest.mark.parametrize("spread", [0.01, 0.03])
def test_unchanged_trainings_are_rarely_called_slower(spread: float) -> None:
    """With one percent for the three rules together, the time alone has a third of it on its side."""
    random = np.random.default_rng(5)
    from nightjar_ci.judges.convergence.target import judge_target

    alarms = 0
    for _ in range(3000):
        old, new = (np.exp(4 + spread * random.normal(size=count)) for count in (10, 3))
        found = judge_target("loss", new, old, (0, 1, 2), (), target=2.0, slower=0.01, tail=0.01 / 3)
        alarms += found.status == "regressed"
    assert alarms / 3000 <= 0.006  # 0.33 % and three standard errors
