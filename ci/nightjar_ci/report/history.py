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
from nightjar_ci.judges.finding import MANY, factor
from nightjar_ci.judges.history.change_points import find_changes
from nightjar_ci.report.figures import COLOURS, MUTED, Figure, readable, rounded

SPARK_WIDTH, SPARK_HEIGHT, SPARK_NIGHTS = 120, 26, 60
_TICKS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """Nights between two changes: the first, the one after the last, and their median."""

    first: int
    end: int
    median: float
    new_environment: bool


def find_levels(series: Series) -> list[Level]:
    """The levels of a series: it breaks where the machine changes for good, and where its values do.

    Of several machines that take turns, the levels are those of the latest one.
    """
    levels = []
    for nights in _same_machine(series):
        first, end = int(nights[0]), int(nights[-1]) + 1
        kept = nights[np.isfinite(series.values[nights])]
        values = series.values[kept]
        scaled = np.log(values) if len(values) and values.min() > 0 else values
        edges = [0, *(change.index for change in find_changes(scaled)), len(kept)]
        for low, high in pairwise(edges):
            if high > low:
                after = int(kept[high]) if high < len(kept) else end
                median = float(np.median(values[low:high]))
                new = first > 0 and low == 0
                levels.append(Level(first=int(kept[low]), end=after, median=median, new_environment=new))
    return levels


def history_figure(series: Series, accepted: Sequence[Entry] = ()) -> Figure:
    """The nights of a series, the level of each stretch, and why a stretch begins."""
    factor, unit = readable(series.values[np.isfinite(series.values)], series.unit)
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
    places = sorted({round(place) for place in np.linspace(0, count - 1, min(_TICKS, count))})
    axis = {"tickvals": places, "ticktext": [series.nights[place][:10] for place in places]}
    layout: dict[str, Any] = {
        "xaxis": {**axis, "range": [-0.5, max(count - 0.5, 1)]},
        "yaxis": {"title": {"text": f"{series.name.partition('/')[2]} ({unit})" if unit else ""}},
        "showlegend": False,
        "shapes": list(_shapes(levels, factor)),
        "annotations": list(_notes(levels, series, accepted)),
    }
    nights = {night: place for place, night in enumerate(series.nights)}
    for entry in accepted:
        if (place := nights.get(entry.night)) is not None:
            layout["shapes"].append(_line(place - 0.5, COLOURS[2], "solid"))
    return {"data": [dots], "layout": layout}


def spark_points(series: Series) -> str:
    """The last nights as the points of an SVG polyline; empty where fewer than two have a value.

    >>> one = Series(name="a/b", unit="s", better="lower", nights=("1", "2"), values=np.array([1.0, 2.0]),
    ...              environments=("x", "x"))
    >>> spark_points(one)
    '0,24 120,2'
    """
    values = series.values[-SPARK_NIGHTS:]
    kept = np.flatnonzero(np.isfinite(values))
    if len(kept) < 2:
        return ""
    low, high = float(values[kept].min()), float(values[kept].max())
    middle, spread = (low + high) / 2, max(high - low, 0.02 * abs(high), 1e-300)  # 2 % is no mountain
    xs = kept * SPARK_WIDTH / max(1, len(values) - 1)
    ys = SPARK_HEIGHT / 2 - (values[kept] - middle) / spread * (SPARK_HEIGHT - 4)
    return " ".join(f"{x:.3g},{y:.3g}" for x, y in zip(xs.tolist(), ys.tolist(), strict=True))


def _same_machine(series: Series) -> Iterator[npt.NDArray[np.int64]]:
    """The places of the nights of each machine in turn; where they alternate, those of the latest alone."""
    keys = np.array(series.environments)
    starts = [place for place in range(len(keys)) if place == 0 or keys[place] != keys[place - 1]]
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


def _line(place: float, colour: str, dash: str) -> dict[str, Any]:
    line = {"color": colour, "width": 1.5, "dash": dash}
    return {"type": "line", "x0": place, "x1": place, "yref": "paper", "y0": 0, "y1": 1, "line": line}


def _notes(levels: Sequence[Level], series: Series, accepted: Sequence[Entry]) -> Iterator[dict[str, Any]]:
    known = {entry.night for entry in accepted}
    for before, level in pairwise(levels):
        change = level.median / before.median - 1 if abs(before.median) > 1e-300 else math.inf
        shown = factor(change) if change >= MANY else f"{100 * change:+.1f} %"
        text = "new machine" if level.new_environment else shown if math.isfinite(change) else "new"
        if series.nights[level.first] in known:
            text += ", accepted"
        place = {"x": level.first - 0.5, "yref": "paper", "y": 1.0, "yanchor": "bottom", "showarrow": False}
        right = level.first > 0.7 * len(series.nights)
        yield {**place, "text": text, "xanchor": "right" if right else "left", "font": {"size": 11}}
