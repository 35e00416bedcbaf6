"""How does a capture look in a terminal? From the profile and the overview to lines of Rich text, plain when piped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from nightjar_profiling.capture_folder.manifest import mark_times
from nightjar_profiling.report.overview import Overview

BAR = 24
SHOWN = 5  # programs, categories


def render_summary(
    profile: dict[str, Any], overview: Overview | None, lines: int, *, bar: bool
) -> Iterator[RenderableType]:
    """Headline, warnings, what is explained, where the time goes.

    Args:
        profile: `profile.json`.
        overview: of the tables; None where the folder has none.
        lines: how many hot lines to show.
        bar: draw the shares as a bar, too.
    """
    yield headline(profile, overview)
    for warning in profile["warnings"]:
        yield Text(f"warning: {warning}", style="yellow")
    yield explained(profile, bar=bar)
    if profile.get("uncertain_fraction"):  # profiles of older versions do not say it
        yield uncertain(profile["uncertain_fraction"])
    if overview is not None:
        yield from devices(overview)
        if len(overview.programs) > 1 or any(program.executions != 1 for program in overview.programs):
            yield programs(overview)
    yield categories(profile)
    yield hot_lines(profile, lines)


def headline(profile: dict[str, Any], overview: Overview | None) -> Text:
    """One line: device time and whether it was measured, steps, devices."""
    text = Text(f"{milliseconds(profile['device_time_ns'])} ms of device time", style="bold")
    if mark := mark_times(profile["backend"]):
        text.append(f" ({mark})", style="yellow")
    if profile["steps"] is not None:
        first, last = profile["steps"]
        text.append(f" in steps {first} to {last}")
    if overview is not None:
        text.append(f", {overview.ops:,} ops on {count(overview.devices, 'device')}", style="not bold")
        if overview.ranks > 1:
            text.append(f" of {overview.ranks:,} ranks", style="not bold")
    return text


def explained(profile: dict[str, Any], *, bar: bool) -> Text:
    """Shares in your code, in library code alone, direct, inferred and without a stack, in words and as a bar."""
    shares = [profile[f"{name}_fraction"] for name in ("direct", "inferred", "unattributed")]
    text = Text()
    left = BAR if bar else 0
    for share, mark, style in zip((*shares[:2], 1.0), "█▓░", ("dark_orange3", "orange3", "bright_black"), strict=True):
        cells = min(left, round(BAR * share))
        text.append(mark * cells, style=style)
        left -= cells
    text.append(f"{'  ' if bar else ''}{profile['user_fraction']:.1%} in your code", style="bold")
    if (library := profile.get("library_fraction")) is not None:  # profiles of older versions do not say it
        text.append(f", {library:.1%} in library code")
    for share, name in zip(shares, ("direct", "inferred", "without a stack"), strict=True):
        text.append(f", {share:.1%} {name}")
    return text


def uncertain(fraction: float) -> Text:
    """How much of the device time may belong to other ops."""
    return Text(f"{fraction:.1%} of the device time uncertain: the trace records the end of some ops late")


def devices(overview: Overview) -> Iterator[Text]:
    """How busy the devices were, and what communication cost."""
    yield Text(f"devices idle {overview.idle_fraction:.1%} of the time between their first op and their last")
    if overview.communication_ns:
        text = Text(f"communication {milliseconds(overview.communication_ns)} ms, of which ")
        text.append(f"{milliseconds(overview.exposed_ns)} ms exposed", style="bold")
        yield text


def programs(overview: Overview) -> Table:
    """The programs with most time, and how long one execution lasts; ops that run side by side add up to more."""
    table = _table("ms", "runs", "elapsed ms", "program")
    for one in overview.programs[:SHOWN]:
        mean = "" if one.mean_ns is None else milliseconds(one.mean_ns)
        table.add_row(milliseconds(one.device_time_ns), f"{one.executions:,}", mean, Text(one.name))
    return table


def categories(profile: dict[str, Any]) -> Table:
    """The categories of work with most time."""
    table = _table("ms", "share", "category")
    total = profile["device_time_ns"] or 1
    for name, ns in list(profile.get("categories", {}).items())[:SHOWN]:
        table.add_row(milliseconds(ns), f"{ns / total:.1%}", Text(name))
    return table


def hot_lines(profile: dict[str, Any], lines: int) -> Table:
    """The hottest lines with their source."""
    table = _table("ms", "share", "line", "source")
    for line in profile["hot_lines"][:lines]:
        place = f"{PurePath(line['file']).name}:{line['line']}"
        table.add_row(milliseconds(line["self_ns"]), f"{line['fraction']:.1%}", Text(place), Text(line["source"] or ""))
    return table


def milliseconds(ns: int) -> str:
    """Milliseconds with a microsecond's precision.

    >>> milliseconds(1_234_567_890)
    '1,234.568'
    """
    return f"{ns / 1e6:,.3f}"


def count(number: int, noun: str) -> str:
    """`1 device`, `8 devices`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _table(*titles: str) -> Table:
    """Without borders; numbers to the right, the last column cut where the terminal ends."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bright_black", title_justify="left")
    for title in titles:
        number = title in ("ms", "share", "runs", "elapsed ms")
        table.add_column(title, justify="right" if number else "left", no_wrap=True, overflow="ellipsis")
    return table
