"""One table of a report page, as plain data: an id, a title, a note that describes the rows, and columns.

The kind of a column decides how the page formats, aligns and sorts it: `text`, `index` (a number that identifies),
`int`, `ns`, `bytes`, `fraction`, `rate` (decimal number), `line` (the node of a stack, shown as its user line with a
link to the source). The page initially sorts a table by its first numeric column.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import polars as pl

from nightjar_profiling.attribution.stacks import NO_STACK

Kind = Literal["text", "index", "int", "ns", "bytes", "fraction", "rate", "line"]
Lines = Mapping[tuple[int | None, str | None], int]
"""Stack node of an instruction, by program id and name."""
Section = dict[str, Any]


def make_section(name: str, title: str, note: str, frame: pl.DataFrame, kinds: Mapping[str, Kind]) -> Section:
    """A section with one column per kind, in that order; columns without any value are left out, except the first."""
    columns = [
        {"name": column.replace("_", " "), "kind": kind, "values": _values(frame[column], kind)}
        for number, (column, kind) in enumerate(kinds.items())
        if number == 0 or frame[column].null_count() < frame.height
    ]
    return {"id": name, "title": title, "note": note, "columns": columns}


def _values(column: pl.Series, kind: Kind) -> list[Any]:
    if kind == "text":
        column = column.cast(pl.String).fill_null("")
    return column.to_list()


def with_line(table: pl.DataFrame, lines: Lines) -> pl.DataFrame:
    """The table with the stack node of each row's instruction."""
    nodes = [lines.get(key, NO_STACK) for key in table.select("program_id", "instruction").iter_rows()]
    return table.with_columns(line=pl.Series(nodes, dtype=pl.Int64))
