"""`nightjar-ci store`: print stored nights, measures and histories."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nightjar_ci.commands.options import Json
from nightjar_ci.errors import InputError

if TYPE_CHECKING:
    from nightjar_ci.settings import Settings
    from nightjar_ci.store import Store


def command(
    cell: Annotated[str | None, typer.Argument(help="A cell, such as gpt_tiny-train-cpu-f32-dp1.")] = None,
    name: Annotated[str | None, typer.Argument(help="A measure of the cell, such as step_time.")] = None,
    as_json: Json = False,
    from_night: Annotated[
        list[Path] | None,
        typer.Option(
            "--import",
            help="Import this night folder first, or asv's results or github-action-benchmark's data.js as the past of "
            "CELL; repeat for more.",
        ),
    ] = None,
) -> None:
    """Show stored nights, the measures of a cell, or one history.

    An import adds the whole night or nothing, and importing a night twice changes nothing. A past becomes a night
    folder for each measured commit, as if the cell of your matrix had run then. The store is
    $NIGHTJAR_DATABASE_URL; default: SQLite in $NIGHTJAR_STATE_DIR/store.sqlite.

    Example: nightjar-ci store gpt_tiny-train-cpu-f32-dp1 step_time
    """
    from nightjar_ci.settings import read_settings
    from nightjar_ci.store import open_store

    settings = read_settings()
    store = open_store(settings)
    for path in from_night or ():
        _import(store, path, cell, settings)
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


def _import(store: Store, path: Path, cell: str | None, settings: Settings) -> None:
    from nightjar_ci.store.folder import import_judged, import_night

    if (path / "night.json").exists() or not path.exists():
        print(f"imported {import_judged(store, path).id}", file=sys.stderr)
        return
    from nightjar_ci.adapters.past import read_past, write_past
    from nightjar_ci.formats.project_files import find_policies
    from nightjar_ci.gate.advice import find_matrix
    from nightjar_ci.night.matrix import read_matrix

    past, left_out = read_past(path)
    if cell is None:
        raise InputError(f"--import {path}: whose past is it?", f"nightjar-ci store CELL --import {path}")
    file = find_matrix(find_policies(None), cell)
    if file is None:
        raise InputError(f"no matrix was found that has the cell {cell}.", "write it first: nightjar-ci init")
    matrix = read_matrix(file).name
    for commit in past:
        folder = write_past(commit, cell, matrix, settings.nights_dir)
        import_night(store, folder)
    dates = f"from {past[0].at:%Y-%m-%d} to {past[-1].at:%Y-%m-%d}"
    text = f"imported {len(past)} commits {dates}, as measured on {past[-1].environment.measured_on}"
    print(f"{text}; {left_out} further results left out; the last is {folder}", file=sys.stderr)


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
