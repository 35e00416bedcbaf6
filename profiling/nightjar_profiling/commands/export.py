"""`nightjar-profiling export`: a capture as a file for another tool."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from nightjar_profiling.commands.report import FusionPolicy
from nightjar_profiling.errors import InputError, NotAttributableError


class Format(StrEnum):
    """Formats of other tools."""

    PERFETTO = "perfetto"
    FOLDED = "folded"
    PPROF = "pprof"
    PGLE = "pgle"


FILES: dict[Format, str] = {
    Format.PERFETTO: "perfetto.json.gz",
    Format.FOLDED: "stacks.folded",
    Format.PPROF: "profile.pb.gz",
    Format.PGLE: "profile.pbtxt",
}


def export(
    capture: Annotated[Path, typer.Argument(help="A capture folder.")],
    to: Annotated[
        Format, typer.Option(help="Format: of ui.perfetto.dev, flamegraph.pl, pprof or XLA's scheduler (pgle).")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Default: in CAPTURE/exports: perfetto.json.gz, stacks.folded, profile.pb.gz or profile.pbtxt; with "
            "pgle a folder gets a file for every program.",
        ),
    ] = None,
    fusion: Annotated[
        FusionPolicy, typer.Option(help="Split a fusion's time over its parts by cost, or give it whole to its root.")
    ] = FusionPolicy.SPLIT,
    program: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="With pgle: this HLO module; default: that with the most device time."),
    ] = None,
) -> None:
    """Write a capture in the format of another tool and print its path.

    Device time in the file is that of the capture, to the nanosecond; that of an estimate is marked as one. pgle is for
    --xla_gpu_pgle_profile_file_or_directory_path: a computation counts with its shortest time in the steady state, a
    communication with its longest.

    Example: nightjar-profiling export capture --to perfetto
    """
    from nightjar_profiling.capture_folder.documents import write_bytes
    from nightjar_profiling.capture_folder.manifest import mark_times, read_manifest
    from nightjar_profiling.capture_folder.tables import read_tables

    if to == Format.PGLE:
        _write_latencies(capture, out or capture / "exports" / FILES[to], program)
        return
    if out is not None and out.is_dir():
        raise InputError(f"--out: {out} is a folder, expected a file.", f"did you mean {out / FILES[to]}?")
    mark = mark_times(read_manifest(capture).backend)
    path = out or capture / "exports" / FILES[to]
    write_bytes(path, find_renderer(to)(read_tables(capture / "tables"), fusion.value, mark))
    print(path.absolute())


def find_renderer(to: Format) -> Callable[..., bytes]:
    """The function that makes a file of a format."""
    from nightjar_profiling.export import folded, perfetto, pprof

    renderers: dict[Format, Callable[..., bytes]] = {
        Format.PERFETTO: perfetto.render_perfetto,
        Format.FOLDED: folded.render_folded,
        Format.PPROF: pprof.render_pprof,
    }
    return renderers[to]


def _write_latencies(capture: Path, out: Path, program: str | None) -> None:
    """Writes a program's latencies for XLA's latency-hiding scheduler; for all programs, into a folder."""
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
    ran = ran.join(tables.programs, on="program_id", how="semi")  # a trace may name a program without its HLO
    if program is None:
        wanted = ran
    else:
        wanted = ran.filter(pl.col("name") == program)
    if wanted.is_empty():
        names = ", ".join(ran["name"].drop_nulls().unique().sort().to_list())
        if program is None or not names:
            raise NotAttributableError(
                f"{capture}: no program ran whose HLO is known.", "capture steps in which the program computes"
            )
        raise InputError(f"--program: {program!r} did not run: expected one of {names}.")
    latencies = measure_latencies(tables)
    fingerprints = dict(tables.programs.select("program_id", "fingerprint").iter_rows())
    for number in wanted["program_id"] if out.is_dir() else wanted["program_id"][:1]:
        fingerprint = re.sub(r"[^0-9A-Za-z_-]", "_", fingerprints[number])  # it comes from a trace, and names a file
        path = out / f"{fingerprint}.pbtxt" if out.is_dir() else out
        write_text(path, render_pgle(latencies.filter(pl.col("program_id") == number)))
        print(path.absolute())
