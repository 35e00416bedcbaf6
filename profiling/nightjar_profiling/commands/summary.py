"""`nightjar-profiling summary`: the shares and the hottest lines of a capture, in the terminal."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Annotated, Any

import typer

from nightjar_profiling.errors import InputError

REPORT_AGAIN = "`nightjar-profiling report` makes it again from the raw trace"


def summary(
    capture: Annotated[Path, typer.Argument(help="A capture folder.")] = Path("capture"),
    lines: Annotated[int, typer.Option(min=1, help="How many lines to show.")] = 15,
    as_json: Annotated[bool, typer.Option("--json", help="Print the profile as one line of JSON.")] = False,
) -> None:
    """Prints where the device time goes: the shares and the hottest Python lines.

    Example: nightjar-profiling summary capture --lines 5
    """
    from nightjar_profiling.analyse import SCHEMA
    from nightjar_profiling.documents import read_json

    profile = read_json(capture / "profile.json", SCHEMA)
    if as_json:
        print(json.dumps(profile))
        return
    try:
        text = render_summary(profile, lines, shutil.get_terminal_size().columns)
    except (LookupError, TypeError, ValueError) as error:
        raise InputError(f"{capture / 'profile.json'}: not a whole profile: {error!r}.", REPORT_AGAIN) from None
    for row in text:
        print(row)


def render_summary(profile: dict[str, Any], lines: int, width: int) -> list[str]:
    """The lines of the summary: headline, table, warnings."""
    rows = [
        (
            f"{line['self_ns'] / 1e6:.3f}",
            f"{line['fraction']:.1%}",
            f"{Path(line['file']).name}:{line['line']}",
            line["source"] or "",
        )
        for line in profile["hot_lines"][:lines]
    ]
    table = render_columns([("ms", "share", "line", "source"), *rows], width)
    return [headline(profile), *table, *(f"warning: {warning}" for warning in profile["warnings"])]


def headline(profile: dict[str, Any]) -> str:
    """One line: device time, and what of it is explained."""
    steps = "" if profile["steps"] is None else f" in steps {profile['steps'][0]} to {profile['steps'][1]}"
    return (
        f"{profile['device_time_ns'] / 1e6:.3f} ms of device time{steps}: {profile['user_fraction']:.1%} in your code, "
        f"{profile['direct_fraction']:.1%} direct, {profile['inferred_fraction']:.1%} inferred, "
        f"{profile['unattributed_fraction']:.1%} without a stack"
    )


def render_columns(rows: list[tuple[str, str, str, str]], width: int) -> list[str]:
    """Aligned text, the first two columns to the right, each line cut at the width.

    >>> render_columns([("ms", "share", "line", "source"), ("12.5", "9.0%", "a.py:3", "x = y @ z")], 24)
    ['  ms  share  line    so…', '12.5   9.0%  a.py:3  x …']
    """
    first, second, third = (max(len(row[number]) for row in rows) for number in range(3))
    lines = [f"{a:>{first}}  {b:>{second}}  {c:<{third}}  {d}" for a, b, c, d in rows]
    return [line if len(line) <= width else f"{line[: width - 1]}…" for line in lines]
