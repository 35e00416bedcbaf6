"""`nightjar-ci store`: print stored nights, measures and histories."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from nightjar_ci.errors import InputError


def command(
    cell: Annotated[str | None, typer.Argument(help="A cell, such as gpt_tiny-train-cpu-f32-dp1.")] = None,
    name: Annotated[str | None, typer.Argument(help="A measure of the cell, such as step_time.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    from_night: Annotated[
        list[Path] | None, typer.Option("--import", help="Import this night folder first; repeat for more.")
    ] = None,
    export_to: Annotated[
        Path | None,
        typer.Option("--export", help="Write all tables into this folder, as Parquet. Needs nightjar-ci[query]."),
    ] = None,
) -> None:
    """Show stored nights, the measures of a cell, or one history.

    An import adds the whole night or nothing, and importing a night twice changes nothing. The store is
    $NIGHTJAR_DATABASE_URL; default: SQLite in $NIGHTJAR_STATE_DIR/store.sqlite.

    Example: nightjar-ci store gpt_tiny-train-cpu-f32-dp1 step_time
    """
    from nightjar_ci.settings import read_settings
    from nightjar_ci.store import open_store

    store = open_store(read_settings())
    for folder in from_night or ():
        from nightjar_ci.store.folder import import_night

        print(f"imported {import_night(store, folder).id}", file=sys.stderr)
    if export_to is not None:
        from nightjar_ci.store.query import export

        for path in export(read_settings(), export_to):
            print(path)
        return
    if cell is None:
        _print([asdict(night) for night in store.nights()], as_json)
        return
    series = store.series()
    names = [measure for series_cell, measure in series if series_cell == cell]
    if not names:
        cells = sorted({series_cell for series_cell, _ in series})
        if not cells:
            raise InputError(f"no cell {cell!r}: the store is empty.", "`nightjar-ci run MATRIX` stores a night")
        raise InputError(f"no cell {cell!r} in the store: expected one of {', '.join(cells)}.")
    if name is None:
        _print([{"cell": cell, "name": measure} for measure in names], as_json)
        return
    if name not in names:
        raise InputError(f"{cell} has no measure {name!r}: expected one of {', '.join(names)}.")
    points = [asdict(point) for point in store.history(cell, name)]
    for point in points:
        if not math.isfinite(point["value"]):
            point["value"] = None
    _print(points, as_json)


def _print(rows: Sequence[dict[str, object]], as_json: bool) -> None:
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    if not rows:
        return
    lines = [[str(key) for key in rows[0]], *([_show(value) for value in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(f"{text:{width}}" for text, width in zip(line, widths, strict=True)).rstrip())


def _show(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value)
