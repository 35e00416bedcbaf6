"""Plotly figures of a night: curves, samples and pairs.

In: plain data. Out: `data` and `layout`, as JSON. All functions are pure. The page sets the colours of text, grid and
background, so that one figure serves light and dark.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nightjar_ci.baselines.baseline import BaselineCurve
from nightjar_ci.formats.policy import ConvergencePolicy
from nightjar_ci.formats.run_record import RunRecord, Sample
from nightjar_ci.judges.convergence.envelope import find_envelope
from nightjar_ci.judges.convergence.scale import on_scale

Figure = dict[str, Any]
COLOURS = ("#3b82f6", "#f59e0b", "#10b981", "#a855f7", "#ef4444", "#06b6d4", "#84cc16", "#ec4899")
BAND = "rgba(120, 130, 150, 0.22)"
MUTED = "rgba(120, 130, 150, 0.9)"


def curve_figure(
    runs: Sequence[RunRecord],
    name: str,
    policy: ConvergencePolicy | None,
    baseline: BaselineCurve | None,
    others: Sequence[RunRecord] = (),
) -> Figure:
    """A cell's curves by seed, with the envelope of the baseline or the curves that they must equal.

    Args:
        others: results of the cell of `policy.same_as`.
    """
    traces: list[dict[str, Any]] = []
    if policy is not None and policy.same_as is None and baseline is not None:
        traces += _envelope(baseline, len(runs), policy)
    for other in others:
        if (curve := other.curve(name)) is not None and any(run.seed == other.seed for run in runs):
            line = {"color": MUTED, "width": 4}
            traces.append(_line(curve.steps, curve.values, f"same as, seed {other.seed}", line))
    curves = [(run.seed, curve) for run in runs if (curve := run.curve(name)) is not None]
    for index, (seed, curve) in enumerate(curves):
        line = {"color": COLOURS[index % len(COLOURS)], "width": 1.5}
        traces.append(_line(curve.steps, curve.values, f"seed {seed}", line))
    values = [value for _, curve in curves for value in curve.values if math.isfinite(value)]
    log = (policy is None or policy.scale == "log") and bool(values) and min(values) > 0
    unit = curves[0][1].unit if curves else ""
    axis: Figure = {"title": {"text": f"{name} ({unit})"}, "type": "linear"}
    if log:
        dtick = "D1" if max(values) < 10 * min(values) else "D2"
        axis.update({"type": "log", "dtick": dtick, "tickformat": "~g"})
    layout = {"xaxis": {"title": {"text": "step"}}, "yaxis": axis, "legend": {"traceorder": "normal"}}
    return {"data": traces, "layout": layout}


def sample_figure(samples: Mapping[str, Sample]) -> Figure:
    """The spread of a sample's steady values, one box per run.

    Args:
        samples: label of a run to its sample; at least one, all with the same unit.
    """
    first = next(iter(samples.values()))
    factor, unit = readable(first.steady, first.unit)
    boxes = [
        {
            "type": "box",
            "x": rounded([value * factor for value in sample.steady]),
            "name": label,
            "boxpoints": "all" if len(sample.steady) <= 2000 else "outliers",
            "jitter": 0.5,
            "pointpos": 0,
            "marker": {"size": 2.5, "opacity": 0.45, "color": COLOURS[index % len(COLOURS)]},
            "line": {"width": 1.2},
        }
        for index, (label, sample) in enumerate(samples.items())
    ]
    return {
        "data": boxes,
        "layout": {
            "xaxis": {"title": {"text": f"{first.name} ({unit})"}},
            "yaxis": {"autorange": "reversed"},
            "showlegend": False,
        },
    }


def pairs_figure(changes: Mapping[int, float], interval: tuple[float, float] | None, unit: str) -> Figure:
    """Relative change by pair, with the interval of the robust mean as a band."""
    shapes: list[dict[str, Any]] = [{"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": 0, "y1": 0}]
    shapes[0]["line"] = {"color": MUTED, "width": 1, "dash": "dot"}
    if interval is not None and all(map(math.isfinite, interval)):
        low, high = (100 * end for end in interval)
        band = {"type": "rect", "xref": "paper", "x0": 0, "x1": 1, "y0": low, "y1": high, "fillcolor": BAND}
        shapes.append({**band, "line": {"width": 0}, "layer": "below"})
    points: Figure = {
        "type": "scatter",
        "mode": "markers",
        "x": list(changes),
        "y": [100 * c for c in changes.values()],
    }
    points["marker"] = {"size": 9, "color": COLOURS[0]}
    axis: Figure = {"title": {"text": "pair"}, "dtick": 1}
    layout = {"xaxis": axis, "yaxis": {"title": {"text": f"{unit}, change (%)"}}, "shapes": shapes, "showlegend": False}
    return {"data": [points], "layout": layout}


def _envelope(baseline: BaselineCurve, runs: int, policy: ConvergencePolicy) -> list[dict[str, Any]]:
    curves = on_scale(list(baseline.seeds.values()), policy.scale)
    if curves is None or len(curves) < policy.min_seeds or not np.isfinite(curves).all():
        return []
    bounds = find_envelope(
        curves, blocks=policy.blocks, runs=max(1, runs), tail=policy.alpha / 2, least=policy.early_rtol
    )
    lengths = np.diff([*bounds.firsts, len(baseline.steps)])  # around the mean curve, which a block's mean would hide
    mean, width = curves.mean(axis=0), np.repeat(bounds.high - bounds.centre, lengths)
    low, high = mean - width, mean + width
    if policy.scale == "log":
        low, high = np.exp(low), np.exp(high)
    edge = {"width": 0, "shape": "linear"}
    hidden = {"type": "scatter", "mode": "lines", "line": edge, "hoverinfo": "skip", "x": list(baseline.steps)}
    return [
        {**hidden, "y": rounded(low), "showlegend": False},
        {
            **hidden,
            "y": rounded(high),
            "fill": "tonexty",
            "fillcolor": BAND,
            "name": f"block means allowed by {len(curves)} baseline seeds",
        },
    ]


def _line(steps: Sequence[int], values: Sequence[float], name: str, line: dict[str, Any]) -> dict[str, Any]:
    return {"type": "scatter", "mode": "lines", "x": list(steps), "y": rounded(values), "name": name, "line": line}


def rounded(values: Sequence[float] | np.ndarray[Any, Any]) -> list[float | None]:
    """The values with six digits, more than a screen shows; a value that is not finite leaves a gap."""
    return [float(f"{value:.6g}") if math.isfinite(value) else None for value in values]


def readable(values: Sequence[float] | np.ndarray[Any, Any], unit: str) -> tuple[float, str]:
    """A readable unit and the factor to it: milliseconds for short times, MiB for bytes."""
    if len(values) == 0:
        return 1.0, unit
    size = abs(float(np.median(values)))
    if unit == "s" and 1e-3 <= size < 1:
        return 1e3, "ms"
    if unit == "s" and 0 < size < 1e-3:
        return 1e6, "us"
    if unit == "bytes" and size >= 2**20:
        return 2.0**-20, "MiB"
    return 1.0, unit
