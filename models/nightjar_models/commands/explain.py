"""`nightjar-models explain`: which line makes two answers differ."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from nightjar_models.errors import InputError
from nightjar_models.parallel.mesh import parse_mesh, render_xla_flags


def explain(
    program: Annotated[
        str, typer.Argument(help="module:function or file.py:function, or a preset: its loss and gradients.")
    ],
    against: Annotated[
        str,
        typer.Option(
            help="The second side: another function; KEY=VALUE of a preset; jax==0.9.0 or other releases, by uv; "
            "python=PATH of an environment; isa=AVX2; flags=--xla_...; compiled as a whole; or, for a preset, mesh=tp2."
        ),
    ],
    args: Annotated[
        str | None,
        typer.Option(help="Arguments: shapes such as f32[8,128],i32[8], or the address of a function that makes them."),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change one number of a preset.")
    ] = None,
    reduce: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also write the difference as a small Python file that needs JAX alone."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")] = False,
) -> None:
    """Find the first line at which two runs of a program compute other numbers.

    Both sides run operation by operation with the same arguments: two programs, or one program under two releases of
    JAX, instruction sets or sets of compiler flags, or one program and what the compiler makes of it, on one device or
    split over a mesh. The answer is the Python line, the operation, the size of the
    difference, and its kind: rounding, numerics (another type or precision), undefined (an index out of bounds), fault,
    not deterministic, or a crash.

    Exit code 0: no difference, or rounding alone; 1: another difference.

    Example: nightjar-models explain old.py:f --against new.py:f --args old.py:x
    """
    if ":" not in program and args is not None:
        raise InputError("--args: expected with a function, not with a preset.", "presets have their own batch")
    if ":" in program and settings:
        raise InputError("--set: expected with a preset, not with a function.")
    side, _, value = against.partition("=")
    if side == "mesh":
        if ":" in program:
            raise InputError("--against mesh=...: expected with a preset.", "compile your own function with `compiled`")
        os.environ["XLA_FLAGS"] = render_xla_flags(os.environ.get("XLA_FLAGS", ""), parse_mesh(value).size)
    # They import JAX.
    from nightjar_models.explain.compiled import explain_compiled, explain_mesh
    from nightjar_models.explain.environments import Request, explain_environments, parse_other
    from nightjar_models.explain.judge import explain as explain_runs
    from nightjar_models.explain.judge import run_here
    from nightjar_models.explain.program import find_own_arguments, trace, trace_preset
    from nightjar_models.explain.reduce import reduce_compiled, reduce_environments, reduce_programs

    def progress(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    request = Request(program=program, args=args, settings=tuple(settings or ()))
    other = parse_other(against, os.environ)
    if side == "mesh":
        difference = explain_mesh(program, request.settings, value, progress)
    elif against == "compiled":
        traced = trace(program, args, request.settings)
        difference = explain_compiled(traced, progress, request)
    elif other is not None:
        difference = explain_environments(request, other, progress)
    else:
        second, changed, own = against, request.settings, find_own_arguments(args, program, against)
        if ":" not in program:
            if "=" not in against:
                raise InputError(
                    f"--against {against}: expected KEY=VALUE, jax==..., isa=..., flags=..., python=... or compiled."
                )
            second, changed, own = program, (*request.settings, against), None
        left = trace(program, args, request.settings)
        right = trace(second, own, changed)
        difference = explain_runs(run_here(left), run_here(right), left.results, progress)
    if as_json:
        print(json.dumps(difference and {**asdict(difference), "text": str(difference)}))
    elif difference is None:
        print("no difference: all numbers are equal bit for bit")
    else:
        print(difference)
    if reduce is not None and difference is not None:
        progress("reducing it")
        if side == "mesh":
            text = reduce_compiled(trace_preset(program, request.settings, value, spread=True), difference)
        elif against == "compiled":
            text = reduce_compiled(traced, difference)
        elif other is not None:
            text = reduce_environments(trace(program, args, request.settings), other, difference)
        else:
            text = reduce_programs(left, right, difference)
        reduce.write_text(text)
        progress(f"{reduce} shows it")
    raise typer.Exit(int(difference is not None and difference.kind != "rounding"))
