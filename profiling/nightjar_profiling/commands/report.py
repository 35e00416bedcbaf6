"""`nightjar-profiling report`: makes the analysis and the report of a capture again, or of a raw trace."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nightjar_profiling.errors import InputError, NotAttributableError

if TYPE_CHECKING:
    from nightjar_profiling.report.analyse import Profile


def report(
    capture: Annotated[
        Path,
        typer.Argument(help="A capture folder, a raw trace, or a log folder of JAX (its newest run)."),
    ],
    out: Annotated[
        Path | None, typer.Option(help="For a raw trace: the capture folder to make. Default: ./capture.")
    ] = None,
    user_code: Annotated[
        list[str] | None,
        typer.Option(metavar="GLOB", help="As in capture; replaces the patterns that the capture holds."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the profile as one line of JSON.")] = False,
) -> None:
    """Rebuild tables, profile and report from a raw trace.

    Prints the path of the report.

    A merged capture has no raw traces: profile and report are made from its tables.

    Example: nightjar-profiling report capture --user-code my_models
    """
    from nightjar_profiling.capture_folder.manifest import check_writable, read_manifest
    from nightjar_profiling.pipeline.hosts import adopt, merge_captures, tabulate_hosts
    from nightjar_profiling.pipeline.ingest import ingest, publish_tables
    from nightjar_profiling.pipeline.staging import making
    from nightjar_profiling.readers.detect import find_kind, find_traces, has_raw, is_raw

    if is_raw(capture):
        folder, (trace, *others) = out or Path("capture"), find_traces(capture)
        check_apart(trace, folder)
        part = find_kind(trace).read(trace)  # before anything is written: it may be damaged
        with making(folder) as new:
            if others:
                hosts = tabulate_hosts([trace, *others], new / "hosts", user_code or [])
                profile = merge_captures(hosts, new)
            else:
                manifest = adopt(trace, new, user_code or [])
                profile = ingest(new, manifest, copy_sources=True, origin=str(trace), parts=[part])
    elif out is None:
        folder, manifest = capture, read_manifest(capture)
        check_writable(folder)
        if user_code is not None:
            manifest = replace(manifest, user_code=tuple(user_code))
        if has_raw(folder) or not (folder / "tables").is_dir():
            profile = ingest(folder, manifest, copy_sources=not manifest.raw)  # of a capture that was never finished
        else:
            print("nightjar-profiling: no raw trace: from the tables as they are", file=sys.stderr, flush=True)
            profile = publish_tables(folder, manifest)
    else:
        raise InputError("--out: only for a raw trace: a capture folder keeps its report inside.")
    show(profile, folder, as_json=as_json)
    check_attributed(profile)


def show(profile: Profile, folder: Path, *, as_json: bool) -> None:
    """Warnings to stderr; the report's path or the profile to stdout."""
    for warning in profile.warnings:
        print(f"nightjar-profiling: warning: {warning}", file=sys.stderr)
    print(json.dumps(profile.document()) if as_json else (folder / "report.html").absolute(), flush=True)


def check_attributed(profile: Profile) -> None:
    """Fails on a profile of JAX without a single Python stack, which is kept."""
    from nightjar_profiling.report.analyse import NO_HLO

    if profile.unattributed_fraction == 1.0 and not profile.foreign:
        why, hint = "no instruction has a Python stack", "run it without JAX_TRACEBACK_IN_LOCATIONS_LIMIT=0"
        if NO_HLO in profile.warnings:
            why = "the trace has no HLO; the page shows what it has"
            hint = "trace with jax.profiler.ProfileOptions.enable_hlo_proto; under nsys, with XLA's dump of HLO"
        raise NotAttributableError(f"No device time could be attributed to Python: {why}.", hint)


def check_apart(trace: Path, folder: Path) -> None:
    """Refuses a trace in the folder that the capture would replace."""
    if trace.resolve().is_relative_to(folder.resolve()):
        raise InputError(f"{trace}: lies in {folder}, which would be made anew.", "name another folder with --out")
