"""The command line of `nightjar-profiling`. Errors end here: a message, a hint, an exit code."""

from __future__ import annotations

import sys
import traceback
from importlib.metadata import version
from typing import Annotated, NoReturn

import typer

from nightjar_profiling.commands.capture import capture
from nightjar_profiling.commands.diff import diff
from nightjar_profiling.commands.export import export
from nightjar_profiling.commands.mcp import mcp
from nightjar_profiling.commands.merge import merge
from nightjar_profiling.commands.report import report
from nightjar_profiling.commands.summary import summary
from nightjar_profiling.errors import ProfilingError, explain
from nightjar_profiling.terminal import harmless_output

app = typer.Typer(
    name="nightjar-profiling",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Maps every kernel back to its HLO instruction and Python line. "
    "Example: nightjar-profiling capture --steps 3:5 -- python train.py",
)
app.command()(capture)
app.command()(diff)
app.command()(export)
app.command()(mcp)
app.command()(merge)
app.command()(report)
app.command()(summary)


def print_version(requested: bool) -> None:
    """Prints the version and ends the program, for `--version`."""
    if requested:
        print(f"nightjar-profiling {version('nightjar-profiling')}")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    show_version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=print_version, help="Print the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Print the traceback of an error.")] = False,
) -> None:
    context.obj = debug


def main() -> None:
    """Runs a command; ends with 0 yes, 1 no, 2 bad usage, 3 a tool failed, 4 not attributable, or the program's own."""
    with harmless_output():
        _run()


def _run() -> None:
    try:
        app(prog_name="nightjar-profiling")
    except ProfilingError as error:
        _end(error)
    except OSError as error:
        _end(explain(error))
    except Exception as error:  # exit code 3: Python's own 1 would say "the answer is no"
        hint = "this is a bug in nightjar-profiling; rerun with --debug and report the traceback"
        _end(ProfilingError(f"{type(error).__name__}: {error}", hint))


def _end(error: ProfilingError) -> NoReturn:
    if "--" in sys.argv:
        own_count = sys.argv.index("--")
    else:
        own_count = len(sys.argv)
    if "--debug" in sys.argv[1:own_count]:
        traceback.print_exc()
    print(f"error: {error.message}", file=sys.stderr)
    if error.hint is not None:
        print(f"Hint: {error.hint}", file=sys.stderr)
    raise SystemExit(error.exit_code) from None
