"""The summary of a capture in a terminal.

In: the profile and the overview. Out: lines of Rich text, plain when piped.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from nightjar_profiling.analyses.side_by_side import ran_side_by_side
from nightjar_profiling.attribution.scopes import PHASES
from nightjar_profiling.capture_folder.manifest import mark_times
from nightjar_profiling.report.overview import Overview

BAR = 24
SHOWN = 5  # programs, categories
MODULE_DEPTH, MOST_MODULES = 3, 12
SHARES = {"direct": "direct", "inferred": "inferred", "without a stack": "unattributed"}


def render_summary(
    profile: dict[str, Any], overview: Overview | None, lines: int, *, bar: bool
) -> Iterator[RenderableType]:
    """Headline, warnings, shares of attributed time, and tables of programs, categories and hot lines."""
    yield headline(profile, overview)
    for warning in profile["warnings"]:
        yield Text(f"warning: {warning}", style="yellow")
    yield attribution(profile, bar=bar)
    if profile["uncertain_fraction"] >= 0.0005:  # 0.1 % as it is shown
        yield uncertain(profile["uncertain_fraction"])
    if overview is not None:
        yield from devices(overview)
        if len(overview.programs) > 1 or any(program.executions != 1 for program in overview.programs):
            yield programs(overview)
    yield categories(profile)
    if profile["modules"]:
        yield modules(profile)
    for rank, row in enumerate(profile["advice"], start=1):
        yield advice(rank, row)
    if profile["hot_lines"]:
        yield hot_lines(profile, lines)
    elif overview is not None:
        yield kernels(overview, profile["device_time_ns"], lines)


def headline(profile: dict[str, Any], overview: Overview | None) -> Text:
    """One line: device time (marked if not measured), steps and devices."""
    text = Text(f"{milliseconds(profile['device_time_ns'])} ms of device time", style="bold")
    if ran_side_by_side(profile["device_time_ns"], profile["busy_time_ns"]):
        text.append(f" in {milliseconds(profile['busy_time_ns'])} ms of busy time")
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


def attribution(profile: dict[str, Any], *, bar: bool) -> Text:
    """Shares in user code, in library code only, direct, inferred and without a stack, in words and as a bar."""
    shares = {name: profile[f"{key}_fraction"] for name, key in SHARES.items()}
    if bar:
        text = draw_bar(shares["direct"], shares["inferred"]).append("  ")
    else:
        text = Text()
    text.append(f"{profile['user_fraction']:.1%} in your code", style="bold")
    text.append(f", {profile['library_fraction']:.1%} in library code")
    for name, share in shares.items():
        text.append(f", {share:.1%} {name}")
    return text


def uncertain(fraction: float) -> Text:
    """How much of the device time may belong to other ops."""
    return Text(f"{fraction:.1%} of the device time uncertain: the trace records the end of some ops late")


def draw_bar(direct: float, inferred: float) -> Text:
    """A bar of BAR cells: direct, inferred and remaining time."""
    text = Text()
    for share, mark, style in ((direct, "█", "dark_orange3"), (inferred, "▓", "orange3"), (1.0, "░", "bright_black")):
        text.append(mark * min(BAR - len(text), round(BAR * share)), style=style)
    return text


def devices(overview: Overview) -> Iterator[Text]:
    """Idle time of the devices, and communication."""
    yield Text(f"devices idle for {overview.idle_fraction:.1%} of the time between their first and last op")
    if overview.communication_ns:
        text = Text(f"communication {milliseconds(overview.communication_ns)} ms, of which ")
        text.append(f"{milliseconds(overview.exposed_ns)} ms exposed", style="bold")
        yield text


def programs(overview: Overview) -> Table:
    """The programs with the most time, and the mean duration of an execution; concurrent ops can sum to more."""
    table = _table("ms", "runs", "wall ms a run", "program")
    for program in overview.programs[:SHOWN]:
        mean = ""
        if program.mean_ns is not None:
            mean = milliseconds(program.mean_ns)
        table.add_row(milliseconds(program.device_time_ns), f"{program.executions:,}", mean, _cut(program.name))
    return table


def categories(profile: dict[str, Any]) -> Table:
    """The categories of work with the most time."""
    table = _table("ms", "share", "category")
    total = profile["device_time_ns"] or 1
    for name, ns in list(profile["categories"].items())[:SHOWN]:
        table.add_row(milliseconds(ns), f"{ns / total:.1%}", _cut(name))
    return table


def modules(profile: dict[str, Any]) -> Table:
    """The modules near the root, each with the time of the modules inside it, and of its phases."""
    phases = [phase for phase in PHASES if any(row[phase] for row in profile["modules"])]
    table = _table("ms", "share", *phases, "module")
    total = profile["device_time_ns"] or 1
    shallow = [row for row in profile["modules"] if row["depth"] < MODULE_DEPTH]
    for row in shallow[:MOST_MODULES]:
        times = (milliseconds(row[phase]) for phase in phases)
        name = f"{'  ' * row['depth']}{row['module'].rpartition('/')[2]}"
        table.add_row(milliseconds(row["total_ns"]), f"{row['total_ns'] / total:.1%}", *times, _cut(name))
    return table


def advice(rank: int, row: dict[str, Any]) -> Text:
    """The advice, its predicted savings and its reasons."""
    text = Text(f"{rank}. {row['action']}", style="bold")
    text.append(f": could save {row['saving_fraction']:.0%} of the elapsed time. ", style="bold")
    text.append(f"{row['evidence'][0].upper()}{row['evidence'][1:]}", style="not bold")
    if row["file"] is not None:
        text.append(f" ({PurePath(row['file']).name}:{row['line']})", style="not bold")
    return text.append(".", style="not bold")


def hot_lines(profile: dict[str, Any], lines: int) -> Table:
    """The hottest lines with their source."""
    busy_time_ns = profile["busy_time_ns"]
    beside = ran_side_by_side(profile["device_time_ns"], busy_time_ns)
    table = _table("ms", "share", *(["busy"] if beside else []), "line", "source")
    merged = merged_by_line(profile)
    for line in profile["hot_lines"][:lines]:
        label = f"{PurePath(line['file']).name}:{line['line']}"
        source = _cut(line["source"] or "")
        if (line["file"], line["line"]) in merged:
            said = _cut(f"[and for {', '.join(merged[line['file'], line['line']])}: equal operations] ")
            said.stylize("cyan")
            source = said.append_text(source)
        busy = [f"{line['busy_ns'] / busy_time_ns:.1%}"] if beside else []
        table.add_row(milliseconds(line["self_ns"]), f"{line['fraction']:.1%}", *busy, Text(label), source)
    return table


def merged_by_line(profile: dict[str, Any]) -> dict[tuple[str, int], list[str]]:
    """By line, the other lines whose operations XLA computes there, since they are equal to its own."""
    merged: dict[tuple[str, int], list[str]] = {}
    for row in profile["merged_lines"]:
        kept = (row["kept_file"], row["kept_line"])
        if (row["file"], row["line"]) != kept:
            merged.setdefault(kept, []).append(f"{PurePath(row['file']).name}:{row['line']}")
    return merged


def kernels(overview: Overview, total_ns: int, lines: int) -> Table:
    """The kernels and ops with the most time, if there are no lines."""
    table = _table("ms", "share", "runs", "kernel or op")
    total = total_ns or 1
    for kernel in overview.kernels[:lines]:
        share = f"{kernel.device_time_ns / total:.1%}"
        table.add_row(milliseconds(kernel.device_time_ns), share, f"{kernel.launches:,}", _cut(kernel.name))
    return table


def milliseconds(ns: int) -> str:
    """Milliseconds with three decimals.

    >>> milliseconds(1_234_567_890)
    '1,234.568'
    """
    return f"{ns / 1e6:,.3f}"


def count(number: int, noun: str) -> str:
    """`1 device`, `8 devices`."""
    if number == 1:
        return f"{number:,} {noun}"
    return f"{number:,} {noun}s"


def _table(*titles: str) -> Table:
    """A table without borders; numbers are right-aligned. The last column, of `_cut` texts, gives way to a width."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bright_black", title_justify="left")
    for title in titles:
        number = title in ("ms", "share", "busy", "runs", "wall ms a run", *PHASES)
        table.add_column(title, justify="right" if number else "left", no_wrap=title != titles[-1])
    return table


def _cut(text: str) -> Text:
    return Text(text, no_wrap=True, overflow="ellipsis")
