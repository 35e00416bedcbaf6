"""Figures and sparklines of the history of a series.

In: a `Series` and the accepted changes. Out: a Plotly figure with its levels, breaks and accepted changes, and the
points of a sparkline. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from nightjar_ci.baselines.accepted import Entry
from nightjar_ci.formats.series import Series
from nightjar_ci.judges.finding import show_change
from nightjar_ci.judges.history.change_points import find_all_changes
from nightjar_ci.report.figures import COLOURS, MUTED, Figure, readable, rounded

SPARK_WIDTH, SPARK_HEIGHT, SPARK_NIGHTS = 120, 26, 60
_TICKS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """Nights between two changes: index of the first, index after the last, and their median."""

    first: int
    end: int
    median: float
    new_environment: bool


def find_levels(series: Series) -> list[Level]:
    """The levels of a series, separated by change points and by permanent changes of the machine.

    If machines alternate, only nights of the latest machine count.
    """
    return find_all_levels([series])[0]


def find_all_levels(histories: Sequence[Series]) -> list[list[Level]]:
    """The levels of each of many series, computed together for equal length."""
    parts = [(number, nights) for number, series in enumerate(histories) for nights in _same_machine(series)]
    kept = [nights[np.isfinite(histories[number].values[nights])] for number, nights in parts]
    values = [histories[number].values[usable] for (number, _), usable in zip(parts, kept, strict=True)]
    scaled = [np.log(part) if len(part) and part.min() > 0 else part for part in values]
    levels: list[list[Level]] = [[] for _ in histories]
    for (number, nights), usable, part, changes in zip(parts, kept, values, find_all_changes(scaled), strict=True):
        edges = [0, *(change.index for change in changes), len(usable)]
        firsts = [*map(int, usable), int(nights[-1]) + 1]
        for low, high in pairwise(edges):
            if high > low:
                median = float(np.median(part[low:high]))
                new = int(nights[0]) > 0 and low == 0
                levels[number].append(Level(first=firsts[low], end=firsts[high], median=median, new_environment=new))
    return levels


def history_figure(series: Series, accepted: Sequence[Entry] = (), levels: Sequence[Level] | None = None) -> Figure:
    """The nights of a series with their levels, and the reason for each new level.

    Args:
        levels: the result of `find_levels`, if already computed.
    """
    factor, unit = readable(series.values[np.isfinite(series.values)], series.unit)
    if levels is None:
        levels = find_levels(series)
    count = len(series.nights)
    dots = {
        "type": "scatter",
        "mode": "lines+markers",
        "x": list(range(count)),
        "y": rounded(factor * series.values),
        "text": [f"{n}, {e}" for n, e in zip(series.nights, series.environments, strict=True)],
        "hovertemplate": "%{y}<br>%{text}<extra></extra>",
        "line": {"color": COLOURS[0], "width": 1},
        "marker": {"size": 4, "color": COLOURS[0]},
    }
    ticks = sorted({round(tick) for tick in np.linspace(0, count - 1, min(_TICKS, count))})
    axis = {"tickvals": ticks, "ticktext": [series.nights[tick][:10] for tick in ticks]}
    title = ""
    if unit:
        title = f"{series.measure} ({unit})"
    layout: dict[str, Any] = {
        "xaxis": {**axis, "range": [-0.5, max(count - 0.5, 1)]},
        "yaxis": {"title": {"text": title}},
        "showlegend": False,
        "shapes": list(_shapes(levels, factor)),
        "annotations": list(_notes(levels, series, accepted)),
    }
    indices = {night: index for index, night in enumerate(series.nights)}
    for entry in accepted:
        if (index := indices.get(entry.night)) is not None:
            layout["shapes"].append(_line(index - 0.5, COLOURS[2], "solid"))
    return {"data": [dots], "layout": layout}


def spark_points(series: Series) -> str:
    """The last nights as the points of an SVG polyline; empty if fewer than two have a value.

    >>> series = Series(name="a/b", unit="s", better="lower", nights=("1", "2"), values=np.array([1.0, 2.0]),
    ...                 environments=("x", "x"))
    >>> spark_points(series)
    '0,24 120,2'
    """
    values = series.values[-SPARK_NIGHTS:]
    kept = np.flatnonzero(np.isfinite(values))
    if len(kept) < 2:
        return ""
    low, high = float(values[kept].min()), float(values[kept].max())
    middle, spread = (low + high) / 2, max(high - low, 0.02 * abs(high), 1e-300)  # noise below 2 % stays flat
    xs = kept * SPARK_WIDTH / max(1, len(values) - 1)
    ys = SPARK_HEIGHT / 2 - (values[kept] - middle) / spread * (SPARK_HEIGHT - 4)
    return " ".join(f"{x:.3g},{y:.3g}" for x, y in zip(xs.tolist(), ys.tolist(), strict=True))


def _same_machine(series: Series) -> Iterator[npt.NDArray[np.int64]]:
    """The indices of each machine's nights; if machines alternate, the latest machine's only."""
    keys = np.array(series.environments)
    starts = [index for index in range(len(keys)) if index == 0 or keys[index] != keys[index - 1]]
    if len(starts) == len(set(series.environments)):
        yield from (np.arange(low, high) for low, high in pairwise([*starts, len(keys)]))
    else:
        yield np.flatnonzero(keys == keys[-1])


def _shapes(levels: Sequence[Level], factor: float) -> Iterator[dict[str, Any]]:
    for level in levels:
        (height,) = rounded([factor * level.median])
        line = {"color": COLOURS[1], "width": 2.5}
        yield {"type": "line", "x0": level.first - 0.5, "x1": level.end - 0.5, "y0": height, "y1": height, "line": line}
    for level in levels[1:]:
        yield _line(level.first - 0.5, MUTED if level.new_environment else COLOURS[4], "dot")


def _line(x: float, colour: str, dash: str) -> dict[str, Any]:
    line = {"color": colour, "width": 1.5, "dash": dash}
    return {"type": "line", "x0": x, "x1": x, "yref": "paper", "y0": 0, "y1": 1, "line": line}


def _notes(levels: Sequence[Level], series: Series, accepted: Sequence[Entry]) -> Iterator[dict[str, Any]]:
    accepted_nights = {entry.night for entry in accepted}
    for before, level in pairwise(levels):
        if level.new_environment:
            text = "new machine"
        else:
            text = _describe_change(before.median, level.median)
        if series.nights[level.first] in accepted_nights:
            text += ", accepted"
        position = {"x": level.first - 0.5, "yref": "paper", "y": 1.0, "yanchor": "bottom", "showarrow": False}
        side = "right" if level.first > 0.7 * len(series.nights) else "left"
        yield {**position, "text": text, "xanchor": side, "font": {"size": 11}}


def _describe_change(before: float, after: float) -> str:
    if abs(before) <= 1e-300 or not math.isfinite(after / before):
        return "new"
    return show_change(after / before - 1, digits=1)
