"""`nightjar-profiling export`: a capture as a file for another tool."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from nightjar_profiling.errors import InputError


class Format(StrEnum):
    """Formats of other tools."""

    FOLDED = "folded"
    PPROF = "pprof"


FILES: dict[Format, str] = {Format.FOLDED: "stacks.folded", Format.PPROF: "profile.pb.gz"}


def export(
    capture: Annotated[Path, typer.Argument(help="A capture folder.")],
    to: Annotated[Format, typer.Option(help="Format: of flamegraph.pl and speedscope, or of pprof.")],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Default: CAPTURE/exports/stacks.folded or CAPTURE/exports/profile.pb.gz."),
    ] = None,
) -> None:
    """Write a capture in the format of another tool and print its path.

    Device time in the file equals the capture's, to the nanosecond; an estimate is marked as one.

    Example: nightjar-profiling export capture --to pprof
    """
    from nightjar_profiling.capture_folder.documents import write_bytes
    from nightjar_profiling.capture_folder.manifest import mark_times, read_manifest
    from nightjar_profiling.capture_folder.tables import read_tables
    from nightjar_profiling.export import samples

    if out is not None and out.is_dir():
        raise InputError(f"--out: {out} is a folder, expected a file.", f"did you mean {out / FILES[to]}?")
    mark = mark_times(read_manifest(capture).backend)
    path = out or capture / "exports" / FILES[to]
    render = samples.render_folded if to is Format.FOLDED else samples.render_pprof
    write_bytes(path, render(read_tables(capture / "tables"), mark))
    print(path.absolute())
