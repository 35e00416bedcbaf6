"""Cards for the verdicts that are not ok, worst first, and rows for the table of all verdicts.

In: verdicts, the series of the night, the figures of the cells. Out: plain data for the page; each card has the figures
and captures that explain its verdict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nightjar_ci.baselines.accepted import Entry
from nightjar_ci.formats.night_folder import job_folder
from nightjar_ci.formats.outcome import Outcome
from nightjar_ci.formats.series import Series
from nightjar_ci.formats.verdict import Verdict
from nightjar_ci.report.figures import Figure
from nightjar_ci.report.history import history_figure, spark_points

MOST_CARDS = 60  # of what is not ok; the rest stands in the table below


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A verdict to look at, with its figures by title, and links: text and address relative to the night folder."""

    verdict: Verdict
    figures: tuple[tuple[str, Figure], ...]
    links: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A verdict in the table of all, with the points of its sparkline."""

    verdict: Verdict
    spark: str


def gather_cards(
    folder: Path,
    verdicts: Sequence[Verdict],
    series: Mapping[str, Series],
    accepted: Mapping[str, Sequence[Entry]],
    figures: Mapping[str, Sequence[tuple[str, Figure]]],
    outcomes: Sequence[Outcome],
) -> tuple[Card, ...]:
    """The cards of the page.

    Args:
        folder: the night folder.
        verdicts: worst first.
        series: by name.
        accepted: accepted changes by series.
        figures: tonight's figures by series, such as a curve with its envelope.
        outcomes: of the night's jobs, for the captures among them.
    """
    cards = []
    for verdict in [one for one in verdicts if one.status != "ok"][:MOST_CARDS]:
        shown = list(figures.get(verdict.series, ()))
        if (history := series.get(verdict.series)) is not None and len(history.nights) > 1:
            figure = history_figure(history, accepted.get(verdict.series, ()))
            shown.append((f"{len(history.nights)} nights", figure))
        links = tuple(_links(folder, verdict.cell, outcomes))
        cards.append(Card(verdict=verdict, figures=tuple(shown), links=links))
    return tuple(cards)


def gather_rows(verdicts: Sequence[Verdict], series: Mapping[str, Series]) -> tuple[Row, ...]:
    """The table of all verdicts, in their order."""
    return tuple(
        Row(verdict=one, spark=spark_points(series[one.series]) if one.series in series else "") for one in verdicts
    )


def captures_of(cell: str, outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The profile jobs of what a cell trains: their ids differ in that one word.

    >>> captures_of("gpt-train-cpu", [])
    []
    """
    return [one for one in outcomes if one.kind == "profile" and one.completed and _place(one.cell) == _place(cell)]


def _place(cell: str) -> tuple[str, ...]:
    return tuple(word for word in cell.split("-") if word not in ("train", "profile"))


def _links(folder: Path, cell: str, outcomes: Sequence[Outcome]) -> list[tuple[str, str]]:
    links = []
    for one in captures_of(cell, outcomes):
        report = job_folder(folder, one.job) / "capture" / "report.html"
        if report.is_file():
            links.append((f"capture {one.job}", report.relative_to(folder).as_posix()))
    return links
