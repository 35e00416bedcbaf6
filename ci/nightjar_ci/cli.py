"""The command line of `nightjar-ci`: the table of subcommands, of which only the requested one is imported.

All errors end here. A `NightjarError` becomes `error: ...` and `Hint: ...` on stderr and its exit code; any unexpected
exception exits with code 3. `--debug` prints the traceback.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.metadata import version
from types import MappingProxyType
from typing import NoReturn

import typer

from nightjar_ci.errors import NightjarError
from nightjar_ci.help import GroupedCommand, grouped

# group of `--help` to its commands; a summary is the first line of the docstring of a `command` or the help of an `app`
GROUPS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "Run": {
            "nightly": "Run, gate and report a matrix: the whole nightly.",
            "run": "Run every job of a matrix and keep the results.",
            "baseline": "Train every cell with many seeds and write its baselines.",
            "matrix": "Print the jobs of a matrix.",
            "render": "Print the batch script or manifest of a job without running it.",
            "adapt": "Turn the logs of another program into a result.",
        },
        "Judge": {
            "gate": "Judge a night: convergence, facts and performance.",
            "confirm": "Re-run what looks slower, paired with an earlier night.",
            "accept": "Accept an intended change: record it in a file that you commit.",
            "facts": "Compare the compile facts of two results.",
            "report": "Render the report of a night.",
        },
        "Find": {
            "bisect": "Find the release, image or commit that changed a test.",
            "store": "Show stored nights, the measures of a cell, or one history.",
            "query": "Query the store in SQL.",
        },
        "Publish": {
            "images": "Build, test and publish the images.",
            "site": "Write the status page: what is red, since when, badges, feeds.",
        },
        "Maintain": {
            "prune": "Delete nights, bisections and environments that are not used.",
            "schema": "Print the JSON Schema of a file format.",
        },
    }
)
COMMANDS: Mapping[str, str] = MappingProxyType(
    {name: summary for commands in GROUPS.values() for name, summary in commands.items()}
)
MACHINE_FAILED = 3
INTERRUPTED = 130
TERMINATED = 143


def make_app(requested: str | None) -> typer.Typer:
    """The command line.

    Args:
        requested: the subcommand whose module is imported; the others are names with a summary.
    """
    app = typer.Typer(
        cls=grouped(GROUPS),
        help="Run nights of JAX workloads, gate them and report what changed.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(_options)
    for name, summary in COMMANDS.items():
        if name != requested:
            app.command(name, help=summary)(_not_imported)
            continue
        module = import_module(f"nightjar_ci.commands.{name}")
        if hasattr(module, "app"):
            app.add_typer(module.app, name=name)
        else:
            app.command(name, cls=GroupedCommand)(module.command)
    return app


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs `nightjar-ci` and ends the process with the command's exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    own_count = words.index("--") if "--" in words else len(words)
    own = words[:own_count]
    debug = "--debug" in own
    words = [word for word in own if word != "--debug"] + words[own_count:]
    signal.signal(signal.SIGTERM, _end_on_signal)  # so that jobs are ended before we are
    try:
        make_app(_find_requested(words))(words, prog_name="nightjar-ci", standalone_mode=True)
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
        hint = "this is a bug in nightjar-ci; rerun with --debug and report the traceback"
        _print_error(f"{type(error).__name__}: {error}", hint)
        sys.exit(MACHINE_FAILED)
    sys.exit(0)


def _find_requested(words: Sequence[str]) -> str | None:
    """The subcommand of a command line, or of the line that a shell asks to complete."""
    completed = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS")
    if completed:
        words = completed.split()[1:]
    return next((word for word in words if not word.startswith("-")), None)


def _print_version(requested: bool) -> None:
    if requested:
        print(f"nightjar-ci {version('nightjar-ci')}")
        raise typer.Exit


def _options(
    show_version: bool = typer.Option(
        False, "--version", is_eager=True, callback=_print_version, help="Print the version and exit."
    ),
    debug: bool = typer.Option(False, "--debug", help="Print the traceback of an error."),
) -> None:
    """Options of every subcommand; `main` has read --debug already, wherever it stands."""


def _not_imported() -> None:
    raise AssertionError("main imports the command that it runs")


def _print_error(message: str, hint: str | None) -> None:
    print(f"error: {message}", file=sys.stderr)
    if hint is not None:
        print(f"Hint: {hint}", file=sys.stderr)


def _end_on_signal(number: int, frame: object) -> None:
    sys.exit(TERMINATED)
