"""The command line of `nightjar-ci`: the table of subcommands, of which only the requested one is imported.

All errors end here. A `NightjarError` becomes `error: ...` and `Hint: ...` on stderr and its exit code. A fault of the
machine (a full disk, a folder that cannot be written) exits with code 3 and says what to do; so does any other
exception, which is called a bug. `--debug` prints the traceback. Printed text cannot act on a terminal.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.metadata import version
from types import MappingProxyType, ModuleType
from typing import NoReturn

import typer

from nightjar_ci.errors import ExitCode, NightjarError
from nightjar_ci.help import GroupedCommand, sectioned
from nightjar_ci.untrusted.terminal import OutputClosedError, harmless_output

# group of `--help` to its commands; a summary is the first line of the docstring of a `command` or the help of an `app`
GROUPS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "Begin": {
            "try": "Run a project's tests with the newest JAX; say what differs.",
            "init": "Write a nightly for a project: its matrix and its workflow.",
        },
        "Run": {
            "nightly": "Run, gate and report a matrix: the whole nightly.",
            "run": "Run every job of a matrix and keep the results.",
            "baseline": "Train every cell with many seeds and write its baselines.",
            "show": "Show a format's schema, or two results' facts.",
            "render": "Print the batch script or manifest of a job without running it.",
            "adapt": "Turn the logs of another program into a result.",
        },
        "Judge": {
            "gate": "Judge a night: convergence, facts and performance.",
            "accept": "Accept an intended change: record it in a file that you commit.",
            "report": "Render the report of a night.",
        },
        "Find": {
            "bisect": "Find the release, image or commit that changed a test.",
            "store": "Show stored nights, the measures of a cell, or one history.",
        },
        "Publish": {
            "images": "Build, test and publish the images.",
            "site": "Write the status page: what is red, since when, badges.",
            "notify": "Tell people about a night on GitHub: comment or issue.",
        },
        "Maintain": {
            "prune": "Delete nights, bisections and environments that are not used.",
        },
    }
)
COMMANDS: Mapping[str, str] = MappingProxyType(
    {name: summary for commands in GROUPS.values() for name, summary in commands.items()}
)

# what to do about a fault of the machine that no command expected
HINTS: Mapping[int, str] = MappingProxyType(
    {
        errno.ENOSPC: "the disk is full: make room, then run the command again",
        errno.EDQUOT: "your quota is used up: make room, then run the command again",
        errno.EACCES: "check that you may read and write it",
        errno.EPERM: "check that you may read and write it",
        errno.EROFS: "the file system is read-only: name a folder on another one",
        errno.ENAMETOOLONG: "name a folder with a shorter path",
        errno.ENOENT: "check the path, and that the current folder still exists",
        errno.EMFILE: "raise the limit of open files: ulimit -n 4096",
        errno.ENFILE: "this machine has too many open files: end other programs",
        errno.EIO: "the disk failed: see the kernel's log",
    }
)


def import_command(name: str) -> ModuleType:
    """The module of a command, which has its name, except that `try` cannot name a module."""
    module = "try_project" if name == "try" else name
    return import_module(f"nightjar_ci.commands.{module}")


def make_app(requested: str | None) -> typer.Typer:
    """The command line.

    Args:
        requested: the subcommand whose module is imported; the others are names with a summary.
    """
    app = typer.Typer(
        cls=sectioned(GROUPS),
        help="Run nights of JAX workloads, gate them and report what changed. "
        "Exit codes: 0 yes, 1 no, 2 wrong input, 3 a tool or machine failed, 4 cannot tell.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(_options)
    for name, summary in COMMANDS.items():
        if name != requested:
            app.command(name, help=summary)(_not_imported)
            continue
        module = import_command(name)
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
    signal.signal(signal.SIGTERM, _end_on_signal)  # so that jobs are killed before this process ends
    with harmless_output(os.environ):
        try:
            try:
                make_app(_find_requested(words))(words, prog_name="nightjar-ci", standalone_mode=True)
            finally:
                sys.stdout.flush()
        except OutputClosedError:
            _discard_output()
            sys.exit(ExitCode.OUTPUT_CLOSED)
        except KeyboardInterrupt:
            _print_error("interrupted.", None)
            sys.exit(ExitCode.INTERRUPTED)
        except Exception as error:
            if debug:
                raise
            if isinstance(error, OSError):  # a full disk, for one
                _discard_output()
            sys.exit(_explain(error))
    sys.exit(0)


def _discard_output() -> None:
    """Leaves nothing to flush: Python does once more at its end, and a failure is the exit code 120 from 3.14 on."""
    with suppress(OSError):  # stdout is no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _explain(error: Exception) -> int:
    """Prints an error; returns its exit code."""
    if isinstance(error, NightjarError):
        _print_error(error.message, error.hint)
        return error.exit_code
    if isinstance(error, OSError):
        names = " -> ".join(str(name) for name in (error.filename, error.filename2) if name is not None)
        _print_error(": ".join(filter(None, (names, error.strerror or str(error)))) + ".", HINTS.get(error.errno or 0))
    elif isinstance(error, MemoryError):
        _print_error("this machine has not enough memory.", "run fewer jobs at a time, or on a machine with more")
    elif isinstance(error, UnicodeEncodeError) and error.reason == "surrogates not allowed":
        _print_error(f"{error.object[:300]!r} is not UTF-8.", "rename the file or folder")
    else:
        hint = "this is a bug in nightjar-ci; rerun with --debug and report the traceback"
        _print_error(f"{type(error).__name__}: {error}", hint)
    return ExitCode.FAILED


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
    """Options of every subcommand; `main` has already read --debug, at any position."""


def _not_imported() -> None:
    raise AssertionError("main imports the command that it runs")


def _print_error(message: str, hint: str | None) -> None:
    print(f"error: {message}", file=sys.stderr)
    if hint is not None:
        print(f"Hint: {hint}", file=sys.stderr)


def _end_on_signal(number: int, frame: object) -> None:
    sys.exit(ExitCode.TERMINATED)
