"""The command line of `nightjar-models`: train a workload, compile it for absent GPUs, check libraries built on JAX."""

from __future__ import annotations

import os
import sys
import traceback
from importlib.metadata import version
from io import StringIO
from typing import Annotated, NoReturn

import typer

from nightjar_models.commands import compile, explain, presets, smoke, train
from nightjar_models.errors import NightjarError

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"max_content_width": 110},
    rich_markup_mode=None,
)
app.command()(train.train)
app.command()(presets.presets)
app.command("compile")(compile.compile_)
app.command()(explain.explain)
app.command()(smoke.smoke)


def print_version(requested: bool) -> None:
    """Prints the version and ends the program, for `--version`."""
    if requested:
        print(f"nightjar-models {version('nightjar-models')}")
        raise typer.Exit


@app.callback()
def options(
    show_version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=print_version, help="Print the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Print the traceback of an error.")] = False,
) -> None:
    """Train, compile and test the workloads that a JAX nightly must keep alive."""


def main() -> None:
    """Runs the command; an error becomes a message and an exit code, never a traceback unless `--debug` asks."""
    sys.stdout, sys.stderr = sys.stdout or StringIO(), sys.stderr or StringIO()  # Python has None for a closed one
    try:
        app(prog_name="nightjar-models")
    except NightjarError as error:
        _end(error)
    except Exception as error:  # exit code 3: Python's own 1 would say "the answer is no"
        hint = "this is a bug in nightjar-models; rerun with --debug and report the traceback"
        _end(NightjarError(f"{type(error).__name__}: {error}", hint))
    finally:
        try:
            sys.stdout.flush()
        except BrokenPipeError:  # the reader went away, as `head` does: the exit code stays the command's answer
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _end(error: NightjarError) -> NoReturn:
    if "--debug" in sys.argv[1:2]:
        traceback.print_exc()
    print(f"error: {error.message}", file=sys.stderr)
    if error.hint is not None:
        print(f"Hint: {error.hint}", file=sys.stderr)
    raise SystemExit(error.exit_code) from None
