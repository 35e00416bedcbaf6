"""The message about a judged night, read from its folder and the store.

In: a night folder with verdicts. Out: a `Message` with the causes, and the answer of the night before.
"""

from __future__ import annotations

from pathlib import Path

from nightjar_ci.causes.tonight import WINDOW, find_row, gather_causes
from nightjar_ci.errors import InputError
from nightjar_ci.formats.night_results import read_night_results
from nightjar_ci.formats.verdict import describe_exit, read_verdicts
from nightjar_ci.gate.gate import find_exit_code
from nightjar_ci.notify.message import Message
from nightjar_ci.settings import Settings
from nightjar_ci.store.nights import read_nights


def read_message(folder: Path, policies: Path, settings: Settings, report: str = "") -> Message:
    """The message about a night.

    Args:
        policies: the policies file; the matrix is looked up in its folder.
        settings: they name the store of earlier nights.
    """
    results, judged = read_night_results(folder), folder / "verdicts.json"
    if not judged.exists():
        raise InputError(f"{folder}: the night has not been judged.", f"nightjar-ci gate {folder}")
    verdicts = read_verdicts(judged)
    earlier = read_nights(settings, window=WINDOW)
    row = find_row(results, verdicts, earlier)
    exit_code = find_exit_code(results, verdicts)
    return Message(
        night=results.night,
        exit_code=exit_code,
        exit_text=describe_exit(
            exit_code,
            verdicts.verdicts,
            not_run=len(results.night.not_run),
            cut=sum(suite.cut for suite in results.read_suites().values()),
        ),
        causes=gather_causes(results, verdicts, earlier, policies, Path.cwd()),
        before=row.nights[-2][1] if len(row.nights) > 1 else None,
        report=report,
    )
