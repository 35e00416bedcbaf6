"""The segment that tonight is compared with: one machine, usable values, from the last accepted change on."""

import math
from dataclasses import replace

import pytest

from nightjar_ci.formats.policy import HistoryPolicy
from nightjar_ci.judges.history.segment import current_segment
from tests.ci.judges.judged import make_series

LOG, LINEAR = HistoryPolicy(), HistoryPolicy(scale="linear")


def test_only_the_machine_of_tonight_counts_and_the_nights_of_others_are_counted() -> None:
    segment = current_segment(make_series([1.0, 2.0, 3.0, 4.0, 5.0], machines="abbab"), LINEAR)
    assert segment.values.tolist() == [2.0, 3.0, 5.0]
    assert segment.nights == ("000001", "000002", "000004")
    assert list(segment.elsewhere) == ["000000", "000003"]


def test_a_night_of_another_machine_without_a_value_is_no_night() -> None:
    assert current_segment(make_series([1.0, math.nan, 3.0], machines="bba"), LINEAR).elsewhere.keys() == {"000000"}


def test_positive_values_are_ratios() -> None:
    segment = current_segment(make_series([1.0, math.inf, math.e, math.nan]), LOG)
    assert (segment.values.tolist(), segment.size) == (pytest.approx([0.0, 1.0]), None)
    assert (segment.floor, segment.jump) == (math.log1p(LOG.floor), math.log1p(LOG.jump))


@pytest.mark.parametrize(
    ("values", "size"), [([0.0, 0.0, 500.0], 500.0), ([-3.0, -3.0, -3.3], 3.0), ([0.0, 1.0, 2.0], 1.5), ([0.0], 1.0)]
)
def test_values_of_which_one_is_not_positive_are_differences_of_their_usual_size(
    values: list[float], size: float
) -> None:
    segment = current_segment(make_series(values), LOG)
    assert segment.size == pytest.approx(size)
    assert segment.values.tolist() == pytest.approx([value / size for value in values])
    assert (segment.as_effect(1.0), segment.as_shift(size)) == pytest.approx((size, 1.0))
    assert segment.show(size) == f"+{size:g} s"
    assert (segment.floor, segment.jump) == (LOG.floor, LOG.jump)


def test_a_measure_that_is_better_when_higher_is_turned() -> None:
    segment = current_segment(make_series([1.0, math.e], better="higher"), LOG)
    assert segment.values.tolist() == pytest.approx([0.0, -1.0])
    assert segment.as_effect(-math.log(1.1)) == pytest.approx(0.1)
    assert math.isfinite(segment.as_effect(-1e3))
    assert segment.as_interval(-math.log(1.2), -math.log(1.1)) == pytest.approx((0.1, 0.2))


def test_a_difference_stays_one_where_the_scale_is_linear() -> None:
    segment = current_segment(make_series([1.0, 2.0], better="higher"), LINEAR)
    assert (segment.as_effect(3.0), segment.as_interval(1.0, 3.0)) == (-3.0, (-3.0, -1.0))


@pytest.mark.parametrize(
    ("accepted", "kept", "since"),
    [
        ((), 5, None),
        (("000002",), 3, "000002"),
        (("000002", "000003"), 2, "000003"),
        (("000002-later",), 2, "000003"),  # between two nights: from the second on
        (("000004",), 1, "000004"),
        (("000005",), 5, None),  # not yet
        (("-earlier",), 5, "000000"),
    ],
)
def test_a_segment_begins_with_the_last_accepted_change(
    accepted: tuple[str, ...], kept: int, since: str | None
) -> None:
    segment = current_segment(make_series([1.0, 2.0, 3.0, 4.0, 5.0]), LINEAR, accepted)
    assert (len(segment.values), segment.accepted) == (kept, since)
    assert segment.nights[-1] == "000004"


def test_nights_of_one_minute_need_not_be_in_the_order_of_their_ids() -> None:
    series = replace(make_series([1.0, 2.0, 3.0]), nights=("0300-9f", "0300-1a", "0300-5c"))
    segment = current_segment(series, LINEAR, ["0300-1a"])
    assert (segment.values.tolist(), segment.accepted) == ([2.0, 3.0], "0300-1a")
