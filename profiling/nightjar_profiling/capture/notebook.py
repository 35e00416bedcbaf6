"""The magic `%%profile` of notebooks.

In: a cell. Out: the cell's output, and below it the page of the capture of the whole cell. The capture stays in a
folder, `capture` unless another is named.
"""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import Any, NoReturn

from nightjar_profiling.capture.steps import capture_steps
from nightjar_profiling.errors import InputError
from nightjar_profiling.pipeline.opened import Capture, open_capture

USAGE = "%%profile [--out FOLDER] [--user-code GLOB]"


class _Parser(argparse.ArgumentParser):
    """A parser whose errors do not end the notebook's kernel."""

    def error(self, message: str) -> NoReturn:
        """Raises instead of ending the process."""
        raise InputError(f"%%profile: {message}.", f"usage: {USAGE}")


def register_magic(shell: Any) -> None:
    """Adds `%%profile` to an IPython shell."""

    def profile(line: str, cell: str) -> Capture | None:
        """Runs the cell under the profiler and shows where its device time goes.

        Usage: %%profile [--out FOLDER] [--user-code GLOB]
        """
        return profile_cell(shell, line, cell)

    shell.register_magic_function(profile, magic_kind="cell")


def profile_cell(shell: Any, line: str, cell: str) -> Capture | None:
    """Runs a cell and returns its capture; None if the cell failed or nothing was captured."""
    options = parse_line(line)
    failure: BaseException | None = None
    try:
        with capture_steps(options.out, user_code=tuple(options.user_code)) as folder:
            result = shell.run_cell(cell)
            failure = result.error_before_exec or result.error_in_exec
            if failure is not None:
                raise failure  # so that the capture is marked as a failed run
    except BaseException as error:
        if error is not failure:
            raise
        return None  # the shell has shown it
    if not (folder / "profile.json").is_file():
        return None
    return open_capture(folder)


def parse_line(line: str) -> argparse.Namespace:
    """The options behind `%%profile`."""
    parser = _Parser(prog="%%profile", usage=USAGE, add_help=False, allow_abbrev=False)
    parser.add_argument("--out", type=Path, default=Path("capture"))
    parser.add_argument("--user-code", action="append", default=[])
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise InputError(f"%%profile: {line!r}: {error}.", f"usage: {USAGE}") from None
    return parser.parse_args(words)
