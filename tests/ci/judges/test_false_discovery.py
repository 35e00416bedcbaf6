import subprocess
import sys
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import false_discovery_control

from nightjar_ci.formats.policy import NightPolicy
from nightjar_ci.formats.verdict import Judge, Status, Verdict
from nightjar_ci.judges.false_discovery import adjust_for_night

POLICY = NightPolicy()


def verdict(p: float | None, status: Status = "regressed", judge: Judge = "performance") -> Verdict:
    return Verdict(
        series="cell/step_time", judge=judge, status=status, p=p, n=1, policy={}, runs=(), explanation="It is."
    )


def statuses(verdicts: list[Verdict]) -> list[Status]:
    return [one.status for one in adjust_for_night(verdicts, POLICY)]


def test_a_regression_that_holds_among_all_series_stays() -> None:
    assert statuses([verdict(1e-6), *[verdict(0.5, "ok")] * 499]) == ["regressed"] + ["ok"] * 499


def test_a_regression_that_chance_explains_is_none_and_says_so() -> None:
    first, *_ = adjust_for_night([verdict(1e-3), *[verdict(0.5, "ok")] * 499], POLICY)
    assert first.status == "cannot_tell"
    assert first.p_adjusted == pytest.approx(0.5)
    assert "Not significant after correcting for 500 tests" in first.explanation


def test_a_doubt_or_an_alarm_of_history_that_chance_explains_is_dropped() -> None:
    others = [verdict(0.5, "ok")] * 50
    assert statuses([verdict(0.04, "cannot_tell", "history"), *others])[0] == "ok"
    assert statuses([verdict(0.01, "regressed", "history"), *others])[0] == "ok"
    assert statuses([verdict(0.5, "cannot_tell", "performance"), *others])[0] == "cannot_tell"


def test_history_that_was_compared_with_a_reference_cannot_tell() -> None:
    compared = verdict(0.01, "regressed", "history").model_copy(update={"policy": {"reference": "jax==0.10.1"}})
    assert statuses([compared, *[verdict(0.5, "ok")] * 50])[0] == "cannot_tell"


def test_a_drop_is_watched_and_an_improvement_is_not() -> None:
    drop, gain, pairs, *_ = adjust_for_night(
        [
            verdict(0.01, "regressed", "history"),
            verdict(0.01, "improved", "history"),
            verdict(0.01),
            *[verdict(0.5, "ok")] * 50,
        ],
        POLICY,
    )
    assert [(one.status, one.watch) for one in (drop, gain, pairs)] == [
        ("ok", True),
        ("ok", False),
        ("cannot_tell", False),
    ]


def test_a_verdict_that_is_ok_already_gets_no_explanation() -> None:
    (weighed,) = adjust_for_night([verdict(0.9, "ok")], POLICY)
    assert (weighed.status, weighed.explanation, weighed.watch) == ("ok", "It is.", False)


def test_the_threshold_itself_still_counts() -> None:
    assert statuses([verdict(POLICY.q)]) == ["regressed"]
    assert statuses([verdict(POLICY.q * 1.001)]) == ["cannot_tell"]


def test_each_verdict_gets_its_own_p_though_exact_ones_stand_between() -> None:
    weighed = adjust_for_night([verdict(None), verdict(0.2), verdict(None), verdict(0.001), verdict(2.0)], POLICY)
    assert [one.p_adjusted for one in weighed] == [None, pytest.approx(0.3), None, pytest.approx(0.003), 1.0]


@pytest.mark.parametrize("judge", ["facts", "convergence"])
def test_an_exact_verdict_is_never_explained_away(judge: Judge) -> None:
    assert statuses([verdict(None, judge=judge), *[verdict(0.9, "ok")] * 500])[0] == "regressed"


def test_many_real_regressions_need_less_evidence_each() -> None:
    assert statuses([verdict(0.01)] * 10 + [verdict(0.9, "ok")] * 10)[:10] == ["regressed"] * 10


@given(st.lists(st.floats(0, 1), min_size=1, max_size=60), st.sampled_from(["bh", "by"]))
def test_p_values_are_adjusted_as_scipy_does(p: list[float], method: Literal["bh", "by"]) -> None:
    found = adjust_for_night([verdict(one, "ok") for one in p], NightPolicy(method=method))
    assert [one.p_adjusted for one in found] == pytest.approx(false_discovery_control(p, method=method))


def test_the_gate_imports_no_scipy() -> None:
    program = "import sys, nightjar_ci.gate.gate; sys.exit('scipy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_night_without_tests_is_left_as_it_is() -> None:
    assert adjust_for_night([verdict(None)], POLICY) == [verdict(None)]
    assert adjust_for_night([], POLICY) == []


@pytest.mark.slow
def test_500_unchanged_series_raise_a_false_alarm_on_fewer_than_one_night_in_thirty() -> None:
    rng = np.random.default_rng(8)
    alarms = 0
    for _ in range(400):
        night = [verdict(float(p), "regressed") for p in rng.random(500)]  # every judge cries wolf
        alarms += "regressed" in statuses(night)
    assert alarms <= 22  # 12 are expected; P(> 22) = 0.3 %
