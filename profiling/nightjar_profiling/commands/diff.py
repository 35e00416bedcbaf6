"""`nightjar-profiling diff`: what changed between two captures, and whether it is more than chance."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nightjar_profiling.errors import InputError, NotAttributableError

if TYPE_CHECKING:
    from nightjar_profiling.analyses.compare.change import Change
    from nightjar_profiling.analyses.compare.diff import Diff

MANIFEST = "manifest.json"


def diff(
    before: Annotated[
        str,
        typer.Argument(
            metavar="A", help="Before: a capture folder, several with commas between, or a folder that holds several."
        ),
    ],
    after: Annotated[str, typer.Argument(metavar="B", help="After: as A.")],
    fail_above: Annotated[
        str | None,
        typer.Option(
            metavar="PERCENT",
            help="Judge the device time of a step: exit code 1 where B is surely slower by more than this, such as 5%, "
            "4 where the executions are too few or too noisy to tell.",
        ),
    ] = None,
    rows: Annotated[int, typer.Option(min=1, help="How many lines, instructions and programs to show.")] = 10,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write what changed as one self-contained page.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as one line of JSON.")] = False,
) -> None:
    """Rank what takes more or less device time in B than in A.

    Ranked by program, Python line and instruction.

    Times are per execution of the main program, in steady state, with a 95 % interval over captures. Processes of
    one program differ, so only several captures a side, taken in turn, tell a difference from chance; with one, only
    what has other instructions is called different. The exit code is 0 whatever changed, unless --fail-above judges it.

    Example: nightjar-profiling diff a1,a2,a3 b1,b2,b3 --fail-above 5%
    """
    from nightjar_profiling.analyses.compare.diff import compare
    from nightjar_profiling.pipeline.opened import read_side

    limit = None if fail_above is None else parse_percent(fail_above)
    sides = [[read_side(folder) for folder in find_captures(text)] for text in (before, after)]
    difference = compare(*sides)
    for warning in difference.warnings:
        print(f"nightjar-profiling: warning: {warning}", file=sys.stderr)
    if html is not None:
        write_page(difference, before, after, html)
    if as_json:
        print(json.dumps(render_document(difference, before, after)))
    else:
        for line in render_diff(difference, rows, shutil.get_terminal_size((160, 24)).columns):
            print(line)
    if limit is not None:
        judge(difference.total, limit)


def find_captures(text: str) -> list[Path]:
    """The capture folders that an argument names.

    A folder that is not a capture stands for the captures in it, and for `capture` folders one level further down.
    """
    if Path(text).exists():
        named = [Path(text)]
    else:
        named = [Path(part.strip()) for part in text.split(",") if part.strip()]
    captures: list[Path] = []
    for folder in named or [Path(text)]:
        levels = () if (folder / MANIFEST).is_file() else ("*", "*/capture")
        held = [path.parent for level in levels for path in sorted(folder.glob(f"{level}/{MANIFEST}"))]
        captures += held or [folder]
    resolved = [folder.resolve() for folder in captures]
    for number, folder in enumerate(resolved):
        if folder in resolved[:number]:
            raise InputError(f"{text}: names {captures[number]} twice.", "name each capture of a side once")
    return captures


def write_page(difference: Diff, before: str, after: str, path: Path) -> None:
    """Writes the page, and names it on stderr."""
    from nightjar_profiling.capture_folder.documents import write_text
    from nightjar_profiling.report.difference import render_difference

    if path.is_dir():
        raise InputError(f"--html: {path} is a folder, expected a file.", f"did you mean {path / 'diff.html'}?")
    write_text(path, render_difference(difference, before, after))
    print(f"nightjar-profiling: wrote {path.absolute()}", file=sys.stderr)


def parse_percent(text: str) -> float:
    """`5%` or `5` as a fraction.

    >>> parse_percent("5%")
    0.05
    """
    try:
        value = float(text.strip().removesuffix("%"))
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise InputError(f"--fail-above: {text!r}: expected a percentage of 0 or more, such as 5%.")
    return value / 100


def judge(total: Change, limit: float) -> None:
    """Exits with 1 if the step is certainly slower than the limit allows."""
    if not total.before_ns or total.low_ns is None or total.high_ns is None:
        raise NotAttributableError(
            "--fail-above: too few executions on one side to tell.", "capture more steps, with --steps FIRST:LAST"
        )
    low, high = total.low_ns / total.before_ns, total.high_ns / total.before_ns
    print(f"nightjar-profiling: device time of a step in B: {low:+.1%} to {high:+.1%}", file=sys.stderr)
    if low > limit and total.certain:
        raise typer.Exit(1)
    if low > limit:
        raise NotAttributableError(
            f"--fail-above: slower by more than {limit:.1%}, with the same instructions and one capture on a side: "
            "two processes of one program may differ as much.",
            "give several captures of each side",
        )
    if high > limit:
        raise NotAttributableError(
            f"--fail-above: {limit:.1%} lies within {low:+.1%} to {high:+.1%}: too noisy to tell.",
            "capture more steps, or on a quieter machine",
        )


def render_document(difference: Diff, before: str, after: str) -> dict[str, Any]:
    """The difference as `--json` prints it (docs/profiling.md)."""
    names = ("programs", "lines", "instructions")
    return {
        "before": before,
        "after": after,
        "executions": list(difference.executions),
        "captures": list(difference.captures),
        "total": difference.total.document(),
        **{name: [change.document() for change in getattr(difference, name)] for name in names},
        "warnings": list(difference.warnings),
    }


def render_diff(difference: Diff, rows: int, width: int) -> list[str]:
    """The text for a terminal: the whole, then a table of programs, of lines and of instructions."""
    total = difference.total
    first, second = (
        f"{count} execution{'s' if count != 1 else ''}{f' in {captures} captures' if captures > 1 else ''}"
        f"{', an estimate' if estimate else ''}"
        for count, captures, estimate in zip(
            difference.executions, difference.captures, difference.estimates, strict=True
        )
    )
    text = [
        f"{_ms(total.before_ns)} ms of device time a step before ({first}), {_ms(total.after_ns)} ms after "
        f"({second}): {_percent(total)}, 95 % interval {_interval(total)}"
    ]
    for title, changes in (
        ("programs", difference.programs),
        ("lines", difference.lines),
        ("instructions", difference.instructions),
    ):
        shown = [change for change in changes if change.delta_ns][:rows]
        if shown:
            text += ["", f"{title}, ms a step", *_table(shown, width)]
    return text


def _table(changes: list[Change], width: int) -> list[str]:
    cells = [("before", "after", "change", "95 % interval", "")]
    cells += [
        (_ms(change.before_ns), _ms(change.after_ns), _percent(change), _interval(change), _title(change))
        for change in changes
    ]
    widths = [max(len(row[number]) for row in cells) for number in range(4)]
    lines = ["  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=False)) + f"  {row[4]}" for row in cells]
    return [line.rstrip() if len(line) <= width else f"{line[: width - 1]}…" for line in lines]


def _title(change: Change) -> str:
    if change.function is None:
        return change.name
    return f"{Path(change.name).name}  {change.source or change.function}"


def _ms(ns: float | None) -> str:
    if ns is None:
        return "-"
    return f"{ns / 1e6:.3f}"


def _percent(change: Change) -> str:
    if change.before_ns is None:
        return "appeared"
    if change.after_ns is None:
        return "vanished"
    if not change.delta_ns:
        return "same"
    if change.fraction is None:
        return "new"
    return f"{change.fraction:+.1%}"


def _interval(change: Change) -> str:
    if change.low_ns is None or change.high_ns is None:
        return "unknown"
    return f"{change.low_ns / 1e6:+.3f} to {change.high_ns / 1e6:+.3f} ms" + ("" if change.certain else " (uncertain)")
