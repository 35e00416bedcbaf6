"""The command line of `nightjar-ci`: the table of subcommands, of which only the requested one is imported.

Whatever goes wrong ends here: a `NightjarError` becomes `error: ...` and `Hint: ...` on stderr and its exit code; what
nobody foresaw ends with 3. `--debug` prints the traceback.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from types import MappingProxyType
from typing import NoReturn

import typer

from nightjar_ci.errors import NightjarError

# name to the first line of the docstring of its `command` (or of its Typer `app`); tests compare them
COMMANDS: Mapping[str, str] = MappingProxyType(
    {
        "nightly": "Run, gate and report a matrix: the whole nightly.",
        "run": "Run every job of a matrix and keep the results.",
        "gate": "Judge a night: convergence, facts and performance.",
        "confirm": "Run what looks slower in a night again, beside the environment of an earlier night.",
        "bisect": "Find which release, image or commit changed a test, under noise.",
        "report": "Render the report of a night.",
        "accept": "Say that a change of a series is wanted, in a file to commit.",
        "baseline": "Train every cell of a matrix with many seeds and write its baselines.",
        "facts": "Compare the compile facts of two results, in words and number by number.",
        "matrix": "Print the jobs that a matrix stands for.",
        "render": "Print the batch script or the manifest that a job of a matrix becomes; nothing is run.",
        "adapt": "Make a result of what another program wrote.",
        "store": "Print what the store remembers: nights, the measures of a cell, or the history of one.",
        "query": "Ask the store in SQL.",
        "site": "Write the status page of the nights: what is red, since when, badges, feeds, the support matrix.",
        "prune": "Delete nights, bisections and uv environments that were not used for so many days.",
        "schema": "Print the JSON Schema of a file format.",
        "images": "Build and test the image tree.",
    }
)
MACHINE_FAILED = 3
INTERRUPTED = 130
TERMINATED = 143


def make_app(asked: str | None) -> typer.Typer:
    """The command line.

    Args:
        asked: the subcommand whose module is imported; the others stay names with a summary.
    """
    app = typer.Typer(
        help="Run nights of JAX workloads, gate them and report what changed.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(_options)
    for name, summary in COMMANDS.items():
        if name != asked:
            app.command(name, help=summary)(_not_imported)
            continue
        module = import_module(f"nightjar_ci.commands.{name}")
        if hasattr(module, "app"):
            app.add_typer(module.app, name=name)
        else:
            app.command(name)(module.command)
    return app


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs `nightjar-ci` and ends the process with the command's exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    given = [one for one in given if one != "--debug"]
    signal.signal(signal.SIGTERM, _end_on_signal)  # so that jobs are ended before we are
    try:
        asked = next((one for one in given if not one.startswith("-")), None)
        make_app(asked)(given, prog_name="nightjar-ci", standalone_mode=True)
    except NightjarError as error:
        if debug:
            raise
        _print_error(error.message, error.hint)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        _print_error("interrupted.", None)
        sys.exit(INTERRUPTED)
    except Exception as error:
        if debug:
            raise
        _print_error(f"{type(error).__name__}: {error}", "this is a fault of nightjar-ci: --debug shows where")
        sys.exit(MACHINE_FAILED)
    sys.exit(0)


def _options(debug: bool = typer.Option(False, "--debug", help="Print the traceback of an error.")) -> None:
    """Options of every subcommand; `main` has read them already, wherever they stand."""


def _not_imported() -> None:
    raise AssertionError("main imports the command that it runs")


def _print_error(message: str, hint: str | None) -> None:
    print(f"error: {message}", file=sys.stderr)
    if hint is not None:
        print(f"Hint: {hint}", file=sys.stderr)


def _end_on_signal(number: int, frame: object) -> None:
    sys.exit(TERMINATED)
