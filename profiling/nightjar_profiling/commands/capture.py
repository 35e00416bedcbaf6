"""`nightjar-profiling capture`: runs a program under the profiler and leaves a capture folder."""

from __future__ import annotations

import os
import re
import shlex
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from nightjar_profiling.commands.report import check_attributed, show
from nightjar_profiling.errors import CaptureError, InputError, ProfilingError


class Backend(StrEnum):
    """Which profiler records the program."""

    AUTO = "auto"
    JAX = "jax"


def capture(
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="The program, unchanged, after `--`.")],
    backend: Annotated[
        Backend, typer.Option(help="Profiler: jax is JAX's own, on CPU, GPU and TPU; auto takes the best there is.")
    ] = Backend.AUTO,
    steps: Annotated[
        str | None,
        typer.Option(
            metavar="FIRST:LAST",
            help="Trace these steps, as jax.profiler.StepTraceAnnotation numbers them, both included. "
            "Default: the whole run.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Capture folder. Default: $NIGHTJAR_OUT/capture, else ./capture.")
    ] = None,
    user_code: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GLOB",
            help="Modules that count as your own code though they are installed, such as `my_models` or "
            "`my_lib/layers/*`. May be given several times.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the profile as one line of JSON.")] = False,
) -> None:
    """Runs a program under the profiler, and maps its device time to Python lines.

    The program's output and exit code are its own; the last line of stdout is the path of the report.

    Example: nightjar-profiling capture --steps 3:5 -- python train.py
    """
    from nightjar_profiling.capture import launch, session
    from nightjar_profiling.manifest import prepare_folder, write_manifest

    wanted = parse_steps(steps)
    folder = (out or Path(os.environ.get("NIGHTJAR_OUT", ".")) / "capture").absolute()
    prepare_folder(folder)
    raw = folder / "raw"
    environment = launch.render_environment(os.environ, raw, wanted)
    what = "the whole run" if wanted is None else f"steps {wanted[0]} to {wanted[1]}"
    print(f"nightjar-profiling: tracing {what} of: {shlex.join(command)}", file=sys.stderr, flush=True)
    exit_code = launch.run(command, environment)
    notes = launch.read_notes(raw)
    traces = session.settle_raw(raw, notes)
    manifest = session.describe_capture(command, os.environ, wanted, user_code or [], exit_code, notes)
    write_manifest(folder, manifest)
    try:
        if not traces:
            raise session.explain_nothing(command, wanted, exit_code, notes)
        print("nightjar-profiling: attributing the trace to Python lines", file=sys.stderr, flush=True)
        from nightjar_profiling.ingest import ingest  # heavy: not before the program has run

        profile = ingest(folder, manifest, copy_sources=True)
    except ProfilingError as error:
        if exit_code <= 0:
            raise
        print(f"nightjar-profiling: {error}", file=sys.stderr)  # the program's own failure is the answer
        raise typer.Exit(exit_code) from None
    show(profile, folder, as_json=as_json)
    if exit_code:
        raise typer.Exit(exit_code if exit_code > 0 else CaptureError.exit_code)
    check_attributed(profile)


def parse_steps(text: str | None) -> tuple[int, int] | None:
    """`3:5`, or `3` alone, as first and last step.

    Raises:
        InputError: not of that form, or the last is before the first.
    """
    if text is None:
        return None
    found = re.fullmatch(r"(\d+)(?::(\d+))?", text)
    if found is None:
        raise InputError(f"--steps: {text!r}: expected FIRST:LAST, such as 3:5.")
    first, last = int(found[1]), int(found[2] or found[1])
    if last < first:
        raise InputError(f"--steps: {text!r}: the last step is before the first.", f"did you mean {last}:{first}?")
    return first, last
