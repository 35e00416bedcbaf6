"""The calendar: a square for each day, of its latest night, and no more days than a screen shows."""

import re
from datetime import date

import pytest

from nightjar_ci.site.html import CALENDAR_DAYS, find_days, find_squares
from tests.ci.site.test_site import make_page, make_verdict, only_row, stored


def test_a_day_shows_its_latest_night_and_a_day_without_one_is_empty() -> None:
    nights = [stored(1), stored(3), stored(3, make_verdict("ok"), started_at="2026-11-03T22:00:00+00:00", id="late")]
    row = only_row(nights)
    days = find_days([row], 42)
    squares = find_squares(row, days)
    assert [None if one is None else (one.night.id[-4:], one.nights) for one in squares] == [
        ("0000", 1),
        None,
        ("late", 2),
    ]


@pytest.mark.parametrize(("most", "first"), [(1, 20), (2, 19), (19, 2), (20, 1), (50, 1)])
def test_the_latest_days_are_shown_and_no_more_than_asked_for(most: int, first: int) -> None:
    days = find_days([only_row([stored(1), stored(20)])], most)
    assert days == [date(2026, 11, day) for day in range(first, 21)]
    assert find_days([], most) == []


def test_the_page_has_six_weeks_of_squares_at_most() -> None:
    late = stored(1, make_verdict("ok"), started_at="2027-02-02T03:00:00+00:00", id="2027-02-02T0300-0000")
    page = make_page([stored(1, make_verdict("ok")), late])
    (table,) = re.findall(r'<table class="calendar">.*?</table>', page, re.DOTALL)
    assert (table.count("<td"), CALENDAR_DAYS) == (42, 42)
