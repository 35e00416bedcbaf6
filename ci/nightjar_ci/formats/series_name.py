"""The name of a series, `<cell>/<measure>`, as written in verdicts, ledgers, the store and on the command line.

In: the text. Out: its two parts. A cell has no slash; a measure may have some.
"""

from __future__ import annotations

from typing import NamedTuple


class SeriesName(NamedTuple):
    """A cell and its measure; the measure is empty if the text names only a cell."""

    cell: str
    measure: str

    def __str__(self) -> str:
        return f"{self.cell}/{self.measure}"


def parse_series_name(text: str) -> SeriesName:
    """The parts of a series' name.

    >>> parse_series_name("gpt-dp1/train/loss")
    SeriesName(cell='gpt-dp1', measure='train/loss')
    """
    cell, _, measure = text.partition("/")
    return SeriesName(cell, measure)
