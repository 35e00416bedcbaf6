"""An open regression: when it is gone, when pairs could tell, and when there is none to look for."""

import math
from dataclasses import replace

import numpy as np
import pytest

from nightjar_ci.formats.policy import HistoryPolicy
from nightjar_ci.formats.verdict import Effect, Verdict
from nightjar_ci.judges.history.open_regression import OpenRegression, find_open_regression
from nightjar_ci.judges.history.segment import Segment, current_segment
from tests.ci.judges.judged import make_series

GOOD, WINDOW = 40, 30  # index of the last good night; nights before it that count


def make_segment(levels: list[float], size: float | None = None, sd: float = 0.001) -> Segment:
    """Good nights, then one night for each level, on the segment's scale."""
    noise = np.random.default_rng(7).normal(0, sd, GOOD + 1 + len(levels))
    values = noise + np.array([*[1.0] * (GOOD + 1), *(1.0 + level for level in levels)])
    segment = current_segment(make_series(values), HistoryPolicy(window=WINDOW, scale="linear"))
    nights = tuple(f"{night:03d}" for night in range(len(values)))
    return replace(segment, nights=nights, elsewhere={"elsewhere": 0.0}, size=size)


def make_verdict(effect: float = 0.1, status: str = "regressed", **policy: str | None) -> Verdict:
    return Verdict(
        series="cell/x",
        judge="history",
        status=status,
        n=1,
        runs=(),
        explanation="",
        effect=Effect(value=effect, unit="x"),
        policy={"since": f"{GOOD + 1:03d}", "good_night": f"{GOOD:03d}", **policy},
    )


def look(levels: list[float], effect: float = 0.1, size: float | None = None) -> OpenRegression:
    regression = find_open_regression(make_segment(levels, size), make_verdict(effect))
    assert regression is not None
    return regression


def test_while_it_stays_it_is_not_gone() -> None:
    regression = look([math.log(1.1)] * 20)
    assert (regression.gone, regression.perhaps_gone) == (False, False)
    assert (regression.size, regression.shift) == pytest.approx((math.log(1.1), math.log(1.1)), abs=0.001)


def test_two_good_nights_may_be_luck_or_the_mend() -> None:
    regression = look([math.log(1.1)] * 10 + [0.0] * 2)
    assert regression.perhaps_gone
    assert regression.shift == pytest.approx(math.log(1.1), abs=0.01)  # of the last five nights


@pytest.mark.parametrize(("left", "gone"), [(0.45, True), (0.55, False)])
def test_it_is_gone_when_less_than_half_of_it_is_left(left: float, gone: bool) -> None:
    size = math.log(1.1)
    regression = look([size] * 3 + [left * size] * 20)
    assert (regression.gone, regression.perhaps_gone) == (gone, gone)


def test_its_size_is_on_the_scale_of_the_values() -> None:
    assert look([0.3] * 5, effect=0.6, size=2.0).size == pytest.approx(0.3, abs=0.01)


@pytest.mark.parametrize(
    "verdict",
    [
        None,
        make_verdict(status="ok"),
        make_verdict(status="improved"),
        make_verdict().model_copy(update={"effect": None}),
        make_verdict(since=None),
        make_verdict(good_night=None),
        make_verdict(good_night="of another machine"),
        make_verdict(effect=0.0),
    ],
)
def test_without_an_earlier_regression_there_is_none_to_look_for(verdict: Verdict | None) -> None:
    assert find_open_regression(make_segment([0.1] * 5), verdict) is None


def test_one_night_is_too_few_to_say_anything() -> None:
    assert find_open_regression(make_segment([0.1]), make_verdict()) is None
    assert find_open_regression(make_segment([0.1] * 2), make_verdict()) is not None


def test_the_last_good_night_is_compared_with_and_the_first_bad_one_is_not() -> None:
    segment = make_segment([math.log(1.1)] * 20, sd=0.0)
    segment.values[GOOD] += 0.01
    earlier = make_verdict()
    two, one = (
        find_open_regression(replace(segment, policy=segment.policy.model_copy(update={"window": window})), earlier)
        for window in (2, 1)
    )
    assert one is not None
    assert two is not None
    assert one.shift == pytest.approx(math.log(1.1) - 0.01)
    assert two.shift == pytest.approx(math.log(1.1) - 0.005)


def test_only_the_nights_of_the_window_are_compared_with() -> None:
    segment = make_segment([math.log(1.1)] * 20)
    segment.values[: GOOD + 1 - WINDOW] += 5.0
    regression = find_open_regression(segment, make_verdict())
    assert regression is not None
    assert regression.shift == pytest.approx(math.log(1.1), abs=0.002)


def test_the_shift_is_that_of_the_last_five_nights() -> None:
    regression = look([0.9, 0.1, 0.1, 0.1, 0.3, 0.3])
    assert regression.shift == pytest.approx(0.1, abs=0.01)  # their median; of six nights it is twice that


def test_nights_of_one_minute_need_not_be_in_the_order_of_their_ids() -> None:
    segment = make_segment([math.log(1.1)] * 3)
    nights = (*(f"x{night}" for night in segment.nights[:GOOD]), *segment.nights[GOOD:])
    regression = find_open_regression(replace(segment, nights=nights), make_verdict())
    assert regression is not None
    assert regression.shift == pytest.approx(math.log(1.1), abs=0.01)


def test_what_pairs_showed_on_a_new_machine_stays_until_pairs_end_it_or_it_is_accepted() -> None:
    segment, earlier = make_segment([0.0] * 20), make_verdict(good_night="elsewhere")
    regression = find_open_regression(segment, earlier)
    assert regression is not None
    assert (regression.gone, regression.perhaps_gone, regression.shift) == (False, True, regression.size)
    since_accepted = replace(segment, nights=segment.nights[GOOD + 5 :], values=segment.values[GOOD + 5 :])
    assert find_open_regression(since_accepted, earlier) is None
