"""`nightjar-profiling pgle`: measured latencies for XLA's latency-hiding scheduler."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from nightjar_profiling.errors import InputError, NotAttributableError


def pgle(
    capture: Annotated[Path, typer.Argument(help="A capture folder.")],
    out: Annotated[
        Path,
        typer.Option(help="File for the program with the most device time; a folder gets one for every program."),
    ],
    program: Annotated[
        str | None, typer.Option(metavar="NAME", help="Another program, by its HLO module's name.")
    ] = None,
) -> None:
    """Write the latencies of a program for XLA's scheduler.

    The file is for --xla_gpu_pgle_profile_file_or_directory_path.

    A computation counts with its shortest time in the steady state, a communication with its longest.

    Example: nightjar-profiling pgle capture --out profile.pbtxt
    """
    import polars as pl

    from nightjar_profiling.analyses.pgle import measure_latencies, render_pgle
    from nightjar_profiling.analyses.steps import summarise_programs
    from nightjar_profiling.capture_folder.documents import write_text
    from nightjar_profiling.capture_folder.manifest import NOT_MEASURED, read_manifest
    from nightjar_profiling.capture_folder.tables import read_tables

    if read_manifest(capture).backend == "estimate":
        print(f"nightjar-profiling: warning: {capture}: {NOT_MEASURED}: XLA wants measured latencies.", file=sys.stderr)
    tables = read_tables(capture / "tables")
    ran = summarise_programs(tables, steady_state=True).filter(pl.col("device_ns") > 0)
    if program is None:
        wanted = ran
    else:
        wanted = ran.filter(pl.col("name") == program)
    if wanted.is_empty():
        names = ", ".join(ran["name"].drop_nulls().unique().sort().to_list())
        if program is None or not names:
            raise NotAttributableError(f"{capture}: no program ran.", "choose steps in which the program computes")
        raise InputError(f"--program: {program!r} did not run: expected one of {names}.")
    latencies = measure_latencies(tables)
    fingerprints = dict(tables.programs.select("program_id", "fingerprint").iter_rows())
    for number in wanted["program_id"] if out.is_dir() else wanted["program_id"][:1]:
        fingerprint = re.sub(r"[^0-9A-Za-z_-]", "_", fingerprints[number])  # it comes from a trace, and names a file
        path = out / f"{fingerprint}.pbtxt" if out.is_dir() else out
        write_text(path, render_pgle(latencies.filter(pl.col("program_id") == number)))
        print(path.absolute())
