"""The command line of `nightjar-profiling`. Errors end here: a message, a hint, an exit code."""

from __future__ import annotations

import sys
import traceback
from typing import Annotated

import typer

from nightjar_profiling.commands.capture import capture
from nightjar_profiling.commands.diff import diff
from nightjar_profiling.commands.export import export
from nightjar_profiling.commands.merge import merge
from nightjar_profiling.commands.pgle import pgle
from nightjar_profiling.commands.report import report
from nightjar_profiling.commands.summary import summary
from nightjar_profiling.errors import ProfilingError, explain

app = typer.Typer(
    name="nightjar-profiling",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Maps every kernel back to its HLO instruction and Python line. "
    "Example: nightjar-profiling capture --steps 3:5 -- python train.py",
)
app.command()(capture)
app.command()(diff)
app.command()(export)
app.command()(merge)
app.command()(pgle)
app.command()(report)
app.command()(summary)


@app.callback()
def options(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Print the traceback of an error.")] = False,
) -> None:
    """Options of every command."""
    context.obj = debug


def main() -> None:
    """Runs a command; ends with 0 yes, 1 no, 2 bad usage, 3 a tool failed, 4 not attributable, or the program's own."""
    try:
        app()
    except (ProfilingError, OSError) as error:
        if "--debug" in sys.argv[1 : sys.argv.index("--") if "--" in sys.argv else None]:
            traceback.print_exc()
        print(f"error: {explain(error) if isinstance(error, OSError) else error}", file=sys.stderr)
        raise SystemExit(error.exit_code if isinstance(error, ProfilingError) else 3) from None
    except Exception as error:  # a fault of ours or the machine's is 3: Python's own 1 would say "the answer is no"
        traceback.print_exc()
        print(f"error: {type(error).__name__}: {error}: this is a fault of nightjar-profiling.", file=sys.stderr)
        raise SystemExit(3) from None
