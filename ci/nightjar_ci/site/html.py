"""The status page as one HTML document, regressions first.

In: a `Page`. Out: HTML that loads nothing from elsewhere. Each regression has the night it began, what changed and what
to do. Jinja2 escapes text, so a job's output cannot become markup.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

import jinja2

from nightjar_ci.bisect.result.answer import Answer as Bisection
from nightjar_ci.formats.verdict import STATUS_TEXT, describe_not_run
from nightjar_ci.images.publish.support import TITLES, Support, render_rows
from nightjar_ci.report.html import show_duration, show_effect
from nightjar_ci.site.calendar import find_days, find_squares
from nightjar_ci.site.status import ANSWER_TEXT, Answer, Open, Status
from nightjar_ci.store.nights import StoredNight

CALENDAR_DAYS = 42
EVENTS_SHOWN, NIGHTS_SHOWN, PACKAGES_SHOWN = 40, 60, ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain")
STALE_H = 30  # a nightly that is older than this is late: one day and some hours of slack


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What the page shows.

    Attributes:
        status: of the nights.
        reports: address of the report of each night that is published.
        verdicts: the file of verdicts of each night that is on this machine.
        bisections: answers with the address of their pages, newest first.
        made_at: when the page was made, ISO 8601 in UTC.
        support: what the nightly images hold and run on, newest first.
        support_missing: why there is none of it, where it was asked for.
    """

    status: Status
    reports: Mapping[str, str]
    verdicts: Mapping[str, str]
    bisections: tuple[tuple[Bisection, str], ...]
    made_at: str
    support: tuple[Support, ...] = ()
    support_missing: str = ""


def render_html(page: Page) -> str:
    """The status as one HTML document."""
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader(
            [jinja2.PackageLoader("nightjar_ci.site", "."), jinja2.PackageLoader("nightjar_ci.report", ".")]
        ),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"effect": show_effect, "when": show_when, "took": show_took, "bisect": render_bisect}
    environment.filters |= {"not_run": describe_not_run}
    status = page.status
    days = find_days(status.rows, CALENDAR_DAYS)
    return environment.get_template("index.html.j2").render(
        page=page,
        status=status,
        headline=find_headline(status),
        days=days,
        squares=[(row, find_squares(row, days)) for row in status.rows],
        regressed=[one for one in status.open if one.verdict.status == "regressed"],
        unclear=[one for one in status.open if one.verdict.status == "cannot_tell"],
        events=status.events[:EVENTS_SHOWN],
        nights=status.nights[:NIGHTS_SHOWN],
        support=render_rows(page.support[:NIGHTS_SHOWN]),
        support_titles=TITLES,
        packages=PACKAGES_SHOWN,
        answer_text=ANSWER_TEXT,
        status_text=STATUS_TEXT,
        stale_h=STALE_H,
    )


def find_headline(status: Status) -> str:
    """The answer in one line."""
    if not status.rows:
        return "no night yet"
    regressed = sum(one.verdict.status == "regressed" for one in status.open)
    unfinished = sum(row.answer == "unfinished" for row in status.rows)
    parts = [
        f"{regressed} series regressed" if regressed else "",
        f"{len(status.failed)} job{'s' * (len(status.failed) != 1)} failed" if status.failed else "",
        describe_not_run(not_run) if (not_run := sum(len(row.latest.not_run) for row in status.not_run)) else "",
        f"{unfinished} night{'s' * (unfinished != 1)} not finished" if unfinished else "",
    ]
    said = [part for part in parts if part]
    if said:
        return ", ".join(said)
    texts: dict[Answer, str] = {"ok": "all is well", "cannot_tell": "no regression found, and some judges cannot tell"}
    return texts.get(status.answer, ANSWER_TEXT[status.answer])


def render_bisect(one: Open, verdicts: Mapping[str, str]) -> str:
    """What a person pastes to find the culprit of a regression, where the night was run or its artifact unpacked.

    Args:
        one: the regression.
        verdicts: the file of verdicts of each night.
    """
    path = verdicts.get(one.night.id, f".nightjar/nights/{one.night.id}/verdicts.json")
    return shlex.join(["nightjar-ci", "bisect", "--verdict", path, one.verdict.series])


def show_when(moment: str) -> str:
    """A moment in UTC, to the minute.

    >>> show_when("2026-11-21T03:00:12.345+00:00")
    '2026-11-21 03:00'
    """
    return f"{datetime.fromisoformat(moment):%Y-%m-%d %H:%M}"


def show_took(night: StoredNight) -> str:
    """How long a night took, from its start to its end."""
    if night.finished_at is None:
        return "-"
    return show_duration(
        (datetime.fromisoformat(night.finished_at) - datetime.fromisoformat(night.started_at)).total_seconds()
    )
