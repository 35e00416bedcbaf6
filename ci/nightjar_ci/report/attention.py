"""Cards for the causes of a night, red first, and rows for the table of all verdicts.

In: causes, verdicts, the night's series, the cells' figures. Out: plain data for the page. The card of a cause holds
the cards of its verdicts, each with the figures and captures that explain it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nightjar_ci.baselines.accepted import Entry
from nightjar_ci.causes.causes import Cause
from nightjar_ci.formats.night_folder import job_folder
from nightjar_ci.formats.outcome import Outcome
from nightjar_ci.formats.series import Series
from nightjar_ci.formats.verdict import Verdict
from nightjar_ci.report.figures import Figure
from nightjar_ci.report.history import history_figure, spark_points

MOST_CARDS = 60  # of verdicts; the other verdicts that are not ok are in the table below


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A verdict to look at, with its figures by title, and links: text and address relative to the night folder."""

    verdict: Verdict
    figures: tuple[tuple[str, Figure], ...]
    links: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseCard:
    """A cause with the cards of its verdicts, worst first; the first cards of a page only."""

    cause: Cause
    cards: tuple[Card, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A verdict in the table of all, with the points of its sparkline."""

    verdict: Verdict
    spark: str


def gather_cards(
    folder: Path,
    causes: Sequence[Cause],
    series: Mapping[str, Series],
    accepted: Mapping[str, Sequence[Entry]],
    figures: Mapping[str, Sequence[tuple[str, Figure]]],
    outcomes: Sequence[Outcome],
) -> tuple[CauseCard, ...]:
    """The cards of the page.

    Args:
        figures: figures of this night by series, such as a curve with its envelope.
        outcomes: of the night's jobs; the profiles among them have captures.
    """

    def make_card(verdict: Verdict) -> Card:
        card_figures = list(figures.get(verdict.series, ()))
        if (history := series.get(verdict.series)) is not None and len(history.nights) > 1:
            figure = history_figure(history, accepted.get(verdict.series, ()))
            card_figures.append((f"{len(history.nights)} nights", figure))
        links = tuple(_links(folder, verdict.cell, outcomes))
        return Card(verdict=verdict, figures=tuple(card_figures), links=links)

    room = MOST_CARDS
    shown = []
    for cause in causes:
        cards = tuple(make_card(verdict) for verdict in cause.verdicts[:room])
        room -= len(cards)
        shown.append(CauseCard(cause=cause, cards=cards))
    return tuple(shown)


def gather_rows(verdicts: Sequence[Verdict], series: Mapping[str, Series]) -> tuple[Row, ...]:
    sparks = {name: spark_points(history) for name, history in series.items()}
    return tuple(Row(verdict=verdict, spark=sparks.get(verdict.series, "")) for verdict in verdicts)


def captures_of(cell: str, outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The completed profile jobs of a training cell: the ids differ only in `train` and `profile`.

    >>> captures_of("gpt-train-cpu", [])
    []
    """
    return [
        outcome
        for outcome in outcomes
        if outcome.kind == "profile" and outcome.completed and _without_kind(outcome.cell) == _without_kind(cell)
    ]


def _without_kind(cell: str) -> tuple[str, ...]:
    return tuple(word for word in cell.split("-") if word not in ("train", "profile"))


def _links(folder: Path, cell: str, outcomes: Sequence[Outcome]) -> list[tuple[str, str]]:
    links = []
    for outcome in captures_of(cell, outcomes):
        report = job_folder(folder, outcome.job) / "capture" / "report.html"
        if report.is_file():
            links.append((f"capture {outcome.job}", report.relative_to(folder).as_posix()))
    return links
