"""The calendar of nights: one square for each day in UTC, newest last.

In: the rows of a status. Out: the days, and for each row a square or None for each day. A day with several nights shows
the latest and the number of nights.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from nightjar_ci.causes.status import Answer, Row
from nightjar_ci.store.nights import StoredNight


@dataclass(frozen=True, slots=True, kw_only=True)
class Square:
    """The latest night of a row on one day, and the number of nights on that day."""

    night: StoredNight
    answer: Answer
    nights: int


def find_days(rows: Sequence[Row], most: int) -> list[date]:
    """The days from the first night to the last one, the latest `most` of them."""
    days = [day_of(night) for row in rows for night, _ in row.nights]
    if not days:
        return []
    last = max(days)
    first = max(min(days), last - timedelta(days=most - 1))
    return [first + timedelta(days=number) for number in range((last - first).days + 1)]


def find_squares(row: Row, days: Sequence[date]) -> list[Square | None]:
    """A square for each day, None for days without a night."""
    counts = Counter(day_of(night) for night, _ in row.nights)
    latest = {day_of(night): (night, answer) for night, answer in row.nights}
    squares = {day: Square(night=night, answer=answer, nights=counts[day]) for day, (night, answer) in latest.items()}
    return [squares.get(day) for day in days]


def day_of(night: StoredNight) -> date:
    """The day in UTC on which a night started."""
    return datetime.fromisoformat(night.started_at).date()
