"""`nightjar-profiling summary`: what a person wants to know first of a capture, in the terminal."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nightjar_profiling.errors import InputError

if TYPE_CHECKING:
    from nightjar_profiling.report.overview import Overview

REPORT_AGAIN = "`nightjar-profiling report` makes it again from the raw trace"
PIPED_WIDTH = 160


def summary(
    capture: Annotated[Path, typer.Argument(help="A capture folder.")] = Path("capture"),
    lines: Annotated[int, typer.Option(min=1, help="How many lines to show.")] = 15,
    as_json: Annotated[bool, typer.Option("--json", help="Print profile and overview as one line of JSON.")] = False,
) -> None:
    """Print where the device time goes.

    What is explained, idle time, programs, categories and the hottest Python lines.

    Example: nightjar-profiling summary capture --lines 5
    """
    from dataclasses import asdict

    from rich.console import Console
    from rich.table import Table

    from nightjar_profiling.capture_folder.documents import read_json
    from nightjar_profiling.capture_folder.manifest import check_finished
    from nightjar_profiling.report.analyse import SCHEMA
    from nightjar_profiling.report.terminal import render_summary

    check_finished(capture)
    profile = read_json(capture / "profile.json", SCHEMA)
    overview = read_overview(capture)
    if as_json:
        print(json.dumps({**profile, "overview": None if overview is None else asdict(overview)}))
        return
    console = Console(width=None if sys.stdout.isatty() else PIPED_WIDTH, highlight=False, soft_wrap=False)
    try:
        parts = list(render_summary(profile, overview, lines, bar=console.is_terminal))
        with console.capture() as captured:
            for part in parts:
                console.print(*(["", part] if isinstance(part, Table) else [part]), sep="\n")
    except (LookupError, TypeError, ValueError) as error:
        raise InputError(f"{capture / 'profile.json'}: not a whole profile: {error!r}.", REPORT_AGAIN) from None
    print("\n".join(row.rstrip() for row in captured.get().splitlines()))


def read_overview(capture: Path) -> Overview | None:
    """The overview of a capture's tables; None if it has none, since a profile alone is worth showing."""
    from nightjar_profiling.capture_folder.tables import read_tables
    from nightjar_profiling.report.overview import make_overview

    if not (capture / "tables").is_dir():
        return None
    return make_overview(read_tables(capture / "tables"))
