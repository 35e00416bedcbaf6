import math
import subprocess
import sys
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import stdtr, stdtrit
from scipy.stats import false_discovery_control

from nightjar_ci.formats.policy import NightPolicy
from nightjar_ci.formats.verdict import Judge, Status, Verdict
from nightjar_ci.judges import student_t as of_ci
from nightjar_ci.judges.false_discovery import adjust_for_night
from nightjar_ci.judges.student_t import t_quantile, t_tail
from nightjar_profiling.analyses.compare import student_t as of_profiling

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
    others = [verdict(0.5, "ok", "history")] * 50
    assert statuses([verdict(0.04, "cannot_tell", "history"), *others])[0] == "ok"
    assert statuses([verdict(0.01, "regressed", "history"), *others])[0] == "ok"
    assert statuses([verdict(0.5, "cannot_tell", "performance"), *others])[0] == "cannot_tell"


def test_history_that_was_compared_with_a_reference_cannot_tell() -> None:
    compared = verdict(0.01, "regressed", "history").model_copy(update={"policy": {"reference": "jax==0.10.1"}})
    assert statuses([compared, *[verdict(0.5, "ok", "history")] * 50])[0] == "cannot_tell"


def test_a_drop_is_watched_and_an_improvement_is_not() -> None:
    drop, gain, pairs, *_ = adjust_for_night(
        [
            verdict(0.01, "regressed", "history"),
            verdict(0.01, "improved", "history"),
            verdict(0.01),  # of a reference that was asked for: no history weakens it
            *[verdict(0.5, "ok", "history")] * 50,
        ],
        POLICY,
    )
    assert [(one.status, one.watch) for one in (drop, gain, pairs)] == [
        ("ok", True),
        ("ok", False),
        ("regressed", False),
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


DEGREES = st.one_of(st.integers(1, 200), st.floats(0.5, 1000))


@given(st.floats(0.1, 1e6), DEGREES)
def test_the_tail_is_that_of_scipy_however_small(value: float, degrees: float) -> None:
    expected = float(stdtr(degrees, -value))
    assert t_tail(value, degrees) == pytest.approx(expected, rel=1e-9, abs=1e-300)
    assert t_tail(-value, degrees) == pytest.approx(1 - expected, rel=1e-12)


@given(st.floats(1e-12, 0.499), DEGREES)
def test_the_quantile_is_that_of_scipy(tail: float, degrees: float) -> None:
    assert t_quantile(tail, degrees) == pytest.approx(-float(stdtrit(degrees, tail)), rel=1e-9)
    assert t_quantile(1 - tail, degrees) == pytest.approx(-t_quantile(tail, degrees), rel=1e-3)


@pytest.mark.parametrize("degrees", [1, 2.5, 1000])
def test_the_ends_of_the_line_have_their_limits(degrees: float) -> None:
    assert [t_tail(value, degrees) for value in (-math.inf, 0.0, 1e-200, 1e200, math.inf)] == [1.0, 0.5, 0.5, 0.0, 0.0]
    assert math.isnan(t_tail(math.nan, degrees))
    assert (t_quantile(0.5, degrees), t_quantile(0.0, degrees), t_quantile(1.0, degrees)) == (0.0, math.inf, -math.inf)


def test_the_two_packages_have_the_same_text() -> None:
    assert Path(of_profiling.__file__).read_text() == Path(of_ci.__file__).read_text()
