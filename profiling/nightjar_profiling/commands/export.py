"""`nightjar-profiling export`: a capture as folded stacks, for other tools."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nightjar_profiling.errors import InputError


def export(
    capture: Annotated[Path, typer.Argument(help="A capture folder.")],
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Default: CAPTURE/exports/stacks.folded.")] = None,
) -> None:
    """Write folded stacks, for flamegraph.pl, inferno or speedscope.app, and print their path.

    Device time in the file equals the capture's, to the nanosecond; an estimate is marked as one.

    Example: nightjar-profiling export capture
    """
    from nightjar_profiling.capture_folder.documents import write_bytes
    from nightjar_profiling.capture_folder.manifest import mark_times, read_manifest
    from nightjar_profiling.capture_folder.tables import read_tables
    from nightjar_profiling.export.folded import render_folded

    if out is not None and out.is_dir():
        raise InputError(f"--out: {out} is a folder, expected a file.", f"did you mean {out / 'stacks.folded'}?")
    mark = mark_times(read_manifest(capture).backend)
    path = out or capture / "exports" / "stacks.folded"
    write_bytes(path, render_folded(read_tables(capture / "tables"), mark))
    print(path.absolute())
