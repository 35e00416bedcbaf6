"""Counters: one night is enough, what adds up is found, and noise is not taken for a count."""

from collections.abc import Sequence

import numpy as np
import pytest

from nightjar_ci.formats.policy import HistoryPolicy, Policies
from nightjar_ci.formats.verdict import Verdict
from nightjar_ci.gate.history import Memory, judge_histories
from nightjar_ci.gate.presence import find_smallest_change
from nightjar_ci.judges.history.counter import judge_counter
from tests.ci.judges.history.test_history import series

POLICY = HistoryPolicy(measure="*", deterministic=True, floor=0.02)
CALLS = 510_338.0


def judge(values: Sequence[float], **changes: object) -> Verdict | None:
    return judge_counter(series(values, **changes), POLICY)  # type: ignore[arg-type]


def statuses(values: Sequence[float]) -> list[str | None]:
    judged = [judge(values[: night + 1]) for night in range(len(values))]
    return [None if verdict is None else verdict.status for verdict in judged]


def test_the_first_night_that_differs_is_red_and_stays_so_until_the_level_returns() -> None:
    assert statuses([CALLS] * 5 + [CALLS * 1.03] * 4 + [CALLS] * 2) == (
        [None] * 3 + ["ok"] * 2 + ["regressed"] * 4 + ["improved", "ok"]
    )


def test_it_names_the_last_good_night_and_the_first_bad_one() -> None:
    verdict = judge([CALLS] * 8 + [CALLS * 1.1] * 3)
    assert verdict is not None
    nights = series([1.0] * 11).nights
    assert (verdict.policy["good_night"], verdict.policy["since"]) == (nights[7], nights[8])
    assert verdict.effect is not None
    assert verdict.effect.value == pytest.approx(0.1)
    assert "+10 %" in verdict.explanation


def test_a_few_calls_more_or_less_are_no_change() -> None:
    rng = np.random.default_rng(0)
    assert set(statuses((CALLS + rng.integers(-9, 10, 40)).tolist())[3:]) == {"ok"}


def test_small_steps_that_add_up_are_found() -> None:
    levels = [CALLS * 1.008**week for week in range(5) for _ in range(7)]
    judged = statuses(levels)
    assert judged[20] == "ok"  # +1.6 %
    assert judged[21] == "regressed"  # +2.4 %


def test_a_single_low_night_is_not_the_level() -> None:
    assert statuses([CALLS] * 6 + [CALLS / 2] + [CALLS] * 3)[6:] == ["improved", "ok", "ok", "ok"]


def test_an_improvement_is_the_new_level() -> None:
    judged = statuses([CALLS] * 6 + [CALLS * 0.9] * 3 + [CALLS])
    assert judged[6:] == ["improved", "ok", "ok", "regressed"]


def test_higher_may_be_better() -> None:
    assert [judge([1.0] * 6 + [last], better="higher").status for last in (0.9, 1.1)] == [  # type: ignore[union-attr]
        "regressed",
        "improved",
    ]


@pytest.mark.parametrize("sd", [0.003, 0.005, 0.01, 0.03])
def test_noise_is_left_to_the_other_judge_or_is_within_the_floor(sd: float) -> None:
    rng = np.random.default_rng(3)
    reds = [judge(np.exp(rng.normal(0, sd, 20)).tolist()) for _ in range(500)]
    assert not [verdict for verdict in reds if verdict is not None and verdict.status == "regressed"]


def test_other_policies_and_young_series_are_left_to_the_other_judge() -> None:
    assert judge_counter(series([CALLS] * 20), HistoryPolicy(measure="*")) is None
    assert judge([CALLS] * 3) is None


def test_an_accepted_level_is_the_new_one() -> None:
    counted = series([CALLS] * 6 + [CALLS * 1.2] * 5)
    assert judge_counter(counted, POLICY).status == "regressed"  # type: ignore[union-attr]
    assert judge_counter(counted, POLICY, [counted.nights[6]]).status == "ok"  # type: ignore[union-attr]


def test_the_gate_judges_a_counter_once_and_knows_what_it_could_have_found() -> None:
    policies = Policies.model_validate({"schema": "nightjar.policies/1", "history": [POLICY]})
    for last, status in ((CALLS, "ok"), (CALLS * 1.05, "regressed")):
        counted, notes = series([CALLS] * 20 + [last]), list[str]()
        memory = Memory(series=[counted])
        (verdict,) = judge_histories(memory, policies, (), {}, notes)
        assert (verdict.status, notes) == (status, [])
        if status == "ok":
            smallest = find_smallest_change(verdict, policies, {}, 1.0)
            assert smallest == (0.02, "history: a counter, tonight")
