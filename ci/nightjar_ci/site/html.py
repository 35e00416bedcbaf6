"""The status page as one HTML document, regressions first.

In: a `Page`. Out: HTML that loads nothing from elsewhere. Each regression has its first bad night, the changes in that
night and the command that bisects it. Jinja2 escapes text, so a job's output cannot become markup.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from nightjar_ci.bisect.result.answer import Answer as Bisection
from nightjar_ci.causes.causes import group_open, urgency
from nightjar_ci.causes.status import ANSWER_TEXT, Answer, Open, Row, Status
from nightjar_ci.formats.verdict import STATUS_TEXT, describe_cut, describe_not_run
from nightjar_ci.images.publish.support import TITLES, Support, render_rows
from nightjar_ci.judges.finding import count
from nightjar_ci.report.html import make_templates, show_duration, show_effect
from nightjar_ci.store.nights import StoredNight

CALENDAR_DAYS = 42
EVENTS_SHOWN, NIGHTS_SHOWN, PACKAGES_SHOWN = 40, 60, ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain")
STALE_H = 30  # a nightly that is older than this is late: one day and some hours of slack


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The contents of the page.

    Attributes:
        reports: night id to the address of its published report.
        verdicts: night id to its file of verdicts, for nights on this machine.
        bisections: answers with the address of their pages, newest first.
        cut: number of tests of the latest nights that had no time to run.
        false_alarms: number of regressions that somebody marked as wrong.
        support: contents and platforms of the nightly images, newest first.
        support_missing: why `support` is empty, if it was requested.
    """

    status: Status
    reports: Mapping[str, str]
    verdicts: Mapping[str, str]
    bisections: tuple[tuple[Bisection, str], ...]
    made_at: str
    cut: int = 0
    false_alarms: int = 0
    support: tuple[Support, ...] = ()
    support_missing: str = ""


def render_html(page: Page) -> str:
    environment = make_templates("nightjar_ci.site")
    environment.filters |= {"effect": show_effect, "when": show_when, "took": show_took, "bisect": render_bisect}
    environment.filters |= {"not_run": describe_not_run}
    status = page.status
    regressed = [opened for opened in status.open if opened.verdict.status == "regressed"]
    days = find_days(status.rows, CALENDAR_DAYS)
    return environment.get_template("index.html.j2").render(
        page=page,
        status=status,
        headline=find_headline(status, page.cut),
        days=days,
        squares=[(row, find_squares(row, days)) for row in status.rows],
        regressed=regressed,
        causes=sorted(group_open(regressed), key=lambda pair: urgency(pair[0])),
        unclear=[opened for opened in status.open if opened.verdict.status == "cannot_tell"],
        reds=sum(event.kind == "regressed" for event in status.events),
        events=status.events[:EVENTS_SHOWN],
        nights=status.nights[:NIGHTS_SHOWN],
        support=render_rows(page.support[:NIGHTS_SHOWN]),
        support_titles=TITLES,
        packages=PACKAGES_SHOWN,
        answer_text=ANSWER_TEXT,
        status_text=STATUS_TEXT,
        stale_h=STALE_H,
    )


def find_headline(status: Status, cut: int = 0) -> str:
    if not status.rows:
        return "no night yet"
    regressed = sum(opened.verdict.status == "regressed" for opened in status.open)
    not_run = sum(len(row.latest.not_run) for row in status.not_run)
    unfinished = sum(row.answer == "unfinished" for row in status.current)
    parts = []
    if regressed:
        parts.append(f"{regressed} series regressed")
    if status.failed:
        parts.append(f"{count(len(status.failed), 'job')} failed")
    if not_run:
        parts.append(describe_not_run(not_run))
    if unfinished:
        parts.append(f"{count(unfinished, 'night')} not finished")
    if not parts:
        texts: dict[Answer, str] = {
            "ok": "all is well in what ran" if cut else "all is well",
            "cannot_tell": "no regression found, and some judges cannot tell",
        }
        parts.append(texts.get(status.answer, ANSWER_TEXT[status.answer]))
    headline = ", ".join(parts)
    if cut:
        return f"{headline}, and {describe_cut(cut)}"
    return headline


def render_bisect(regression: Open, verdicts: Mapping[str, str]) -> str:
    night = regression.night.id
    path = verdicts.get(night, f".nightjar/nights/{night}/verdicts.json")
    return shlex.join(["nightjar-ci", "bisect", "--verdict", path, regression.verdict.series])


def show_when(moment: str) -> str:
    """A moment in UTC, to the minute.

    >>> show_when("2026-11-21T03:00:12.345+00:00")
    '2026-11-21 03:00'
    """
    return f"{datetime.fromisoformat(moment):%Y-%m-%d %H:%M}"


def show_took(night: StoredNight) -> str:
    if night.finished_at is None:
        return "-"
    began, ended = (datetime.fromisoformat(at).timestamp() for at in (night.started_at, night.finished_at))
    return show_duration(ended - began)


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
    return datetime.fromisoformat(night.started_at).date()
