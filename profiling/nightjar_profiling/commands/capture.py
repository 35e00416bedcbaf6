"""`nightjar-profiling capture`: runs a program under the profiler and leaves a capture folder."""

from __future__ import annotations

import os
import re
import shlex
import signal
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal

import typer

from nightjar_profiling.capture.backends import Backend
from nightjar_profiling.commands.report import check_attributed, show
from nightjar_profiling.errors import InputError, ProfilingError, explain
from nightjar_profiling.terminal import say


def capture(
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="The program, unchanged, after `--`.")],
    backend: Annotated[
        Backend,
        typer.Option(
            help="nsys is Nsight Systems; jax is JAX's own, on CPU, GPU and TPU; auto: nsys if there is a GPU."
        ),
    ] = Backend.AUTO,
    steps: Annotated[
        str | None,
        typer.Option(
            metavar="FIRST:LAST",
            help="Trace these steps, as jax.profiler.StepTraceAnnotation numbers them, both included. "
            "Default: the whole run.",
        ),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            "--for",
            min=0.001,
            max=1e6,  # a timer of Python takes no longer one everywhere
            metavar="SECONDS",
            help="End the trace, not the program, so long after JAX's first use.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Capture folder; each rank of a multi-process job has a folder in it. "
            "Default: $NIGHTJAR_OUT/capture, else ./capture."
        ),
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
    """Run a program and map its device time to Python lines.

    The program's output and exit code are its own (128 + N where signal N ended it, as a shell says it); the last line
    of stdout is the path of the report.

    Example: nightjar-profiling capture --steps 3:5 -- python train.py
    """
    from nightjar_profiling.capture import launch
    from nightjar_profiling.capture.session import make_capture, shell_code
    from nightjar_profiling.capture_folder.ranks import find_rank, rank_folder
    from nightjar_profiling.pipeline.staging import find_place, making

    wanted, rank = parse_steps(steps), find_rank(os.environ)
    if seconds is not None and (wanted is not None or backend is Backend.NSYS):
        raise InputError("--for: expected without --steps and without --backend nsys.")
    if seconds is not None:
        backend = Backend.JAX
    folder = rank_folder((out or Path(os.environ.get("NIGHTJAR_OUT", ".")) / "capture").absolute(), rank)
    launch.check_program(command)
    exit_code = 0
    try:
        with making(folder) as new:
            name, exit_code = trace(command, new / "raw", wanted, backend, seconds)
            profile = make_capture(new, command, wanted, user_code or (), exit_code, backend=name, rank=rank)
            place = find_place(folder, new)
    except (ProfilingError, OSError) as error:
        if exit_code == 0:
            raise
        say(str(explain(error)))  # the program's own failure is the answer
        raise typer.Exit(shell_code(exit_code)) from None
    except KeyboardInterrupt:
        say("interrupted")
        raise typer.Exit(shell_code(exit_code) or shell_code(-signal.SIGINT)) from None
    if exit_code:
        with suppress(OSError):  # the terminal may be gone, which ended the program
            show(profile, place, as_json=as_json)
        raise typer.Exit(shell_code(exit_code))
    show(profile, place, as_json=as_json)
    check_attributed(profile)


def trace(
    command: list[str], raw: Path, steps: tuple[int, int] | None, backend: Backend, seconds: float | None
) -> tuple[Literal["jax", "nsys"], int]:
    """Runs the program under a profiler, which writes into a folder.

    Returns:
        The profiler, and the exit code of the program.
    """
    from nightjar_profiling.capture import backends, launch
    from nightjar_profiling.readers.nsys.nsight import find_nsys

    choice = backends.choose_backend(backend, find_nsys(os.environ), backends.has_gpu())
    environment = launch.render_environment(os.environ, raw, steps, choice.backend.value, seconds)
    started, id_file = list(command), None
    if choice.program is not None:
        id_file = raw / ".program"
        wrapped = launch.telling_its_id(id_file, command)
        started = backends.render_nsys(choice.program, raw / "rank0000", steps, wrapped)
    what = "the whole run" if seconds is None else f"at most {seconds:g} s"
    if steps is not None:
        what = f"steps {steps[0]} to {steps[1]}"
    say(f"tracing {what} with {choice.reason}: {shlex.join(command)}")
    exit_code = launch.run(started, environment, id_file)
    return ("jax" if choice.program is None else "nsys"), exit_code


def parse_steps(text: str | None) -> tuple[int, int] | None:
    """`3:5`, or `3` alone, as first and last step."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d+)(?::(\d+))?", text)
    if match is None:
        raise InputError(f"--steps: {text!r}: expected FIRST:LAST, such as 3:5.")
    first, last = int(match[1]), int(match[2] or match[1])
    if last < first:
        raise InputError(f"--steps: {text!r}: the last step is before the first.", f"did you mean {last}:{first}?")
    return first, last
