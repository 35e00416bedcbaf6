"""`nightjar-profiling why`: why a program takes its time, or why it takes more or less than another, and what to do."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Annotated, Any

import typer

from nightjar_profiling.errors import InputError

ROWS = 5
REPORT_AGAIN = "`nightjar-profiling report` makes it again from the raw trace"


def why(
    before: Annotated[Path, typer.Argument(metavar="A", help="A capture folder.")],
    after: Annotated[
        Path | None, typer.Argument(metavar="B", help="Another, to explain what it does otherwise.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as one line of JSON.")] = False,
) -> None:
    """Say what to do next about A, or what makes B faster or slower than A.

    Each advice has its evidence, its line and a predicted saving, as a share of the time from the first op to the last.
    Savings overlap, and are not to be added.

    Example: nightjar-profiling why capture
    """
    captures = [before] if after is None else [before, after]
    advice = [read_advice(capture) for capture in captures]
    document: dict[str, Any] = {"captures": list(map(str, captures)), "advice": advice}
    lines: list[str] = []
    if after is not None:
        from nightjar_profiling.analyses.compare.diff import compare
        from nightjar_profiling.commands.diff import render_diff, render_document
        from nightjar_profiling.pipeline.opened import read_side

        difference = compare([read_side(before)], [read_side(after)])
        document["diff"] = render_document(difference, str(before), str(after))
        lines += [*render_diff(difference, ROWS, shutil.get_terminal_size((160, 24)).columns), ""]
    if as_json:
        print(json.dumps(document))
        return
    lines += render_advice(advice)
    print("\n".join(lines))


def read_advice(capture: Path) -> list[dict[str, Any]]:
    """The advice of a capture."""
    from nightjar_profiling.capture_folder.documents import read_json
    from nightjar_profiling.capture_folder.manifest import check_finished
    from nightjar_profiling.report.analyse import SCHEMA as PROFILE

    check_finished(capture)
    advice = read_json(capture / "profile.json", PROFILE).get("advice")
    if not isinstance(advice, list):
        raise InputError(f"{capture / 'profile.json'}: has no advice.", REPORT_AGAIN)
    return advice


def render_advice(captures: list[list[dict[str, Any]]]) -> list[str]:
    """The advice about the last capture, each with its predicted saving in the capture before."""
    from nightjar_profiling.report.terminal import advice

    *earlier, last = captures
    if not last:
        return ["Nothing to advise: no cost was found that the program need not have."]
    if earlier:
        savings = {row["kind"]: row["saving_fraction"] for row in earlier[0]}
    else:
        savings = {}
    lines = []
    for rank, row in enumerate(last, start=1):
        text = advice(rank, row).plain
        if earlier:
            text += f" In A it could save {savings.get(row['kind'], 0.0):.0%}."
        lines.append(text)
    return lines
