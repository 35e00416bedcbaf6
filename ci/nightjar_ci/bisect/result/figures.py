"""The pictures of an answer as SVG: the measurements at each rung, and the probability of each. Pure.

In: an `Answer`. Out: SVG elements for the page, which needs no script. Colours come from the page's style sheet, and
each mark has a `<title>` that a browser shows under the pointer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from nightjar_ci.bisect.result.answer import Answer, RungSummary

WIDTH, HEIGHT = 1000, 296
LEFT, RIGHT, TOP, BOTTOM = 70, 10, 12, 108
_MOST_LABELS = 24  # of rungs below the axis; others have none
_LONGEST_LABEL = 18
_KINDS = (("good", "good"), ("bad", "bad"), ("cannot_tell", "cannot tell"))


def draw_values(answer: Answer) -> str:
    """Test results by rung: a dot for each value of a metric, or a stack of bars for good and bad."""
    rungs = answer.places
    if answer.metric is None:
        most = max((rung.good + rung.bad + rung.cannot_tell for rung in rungs), default=0)
        return _picture(rungs, "tests", _stacks(rungs, max(most, 1)), _ticks(0.0, float(max(most, 1)), is_log=False))
    values = [value for rung in rungs for value in rung.values]
    if not values:
        return ""
    is_log = min(values) > 0 and max(values) > 10 * min(values)
    low, high = _limits(values, is_log=is_log)
    dots = [
        f'<circle class="dot" cx="{_x(index, len(rungs)):.1f}" cy="{_y(value, low, high, is_log=is_log):.1f}" r="4">'
        f"<title>{escape(rung.name)}: {value:.6g}</title></circle>"
        for index, rung in enumerate(rungs)
        for value in rung.values
    ]
    return _picture(rungs, answer.metric, dots, _ticks(low, high, is_log=is_log))


def draw_posterior(answer: Answer) -> str:
    rungs = answer.places
    width = _step(len(rungs)) * 0.7
    bars = [
        f'<rect class="probability" x="{_x(index, len(rungs)) - width / 2:.1f}" y="{_y(chance, 0, 1):.1f}"'
        f' width="{width:.1f}" height="{_y(0, 0, 1) - _y(chance, 0, 1):.1f}">'
        f"<title>{escape(rung.name)}: {chance:.4f}</title></rect>"
        for index, rung in enumerate(rungs)
        if (chance := rung.probability or 0.0) > 0
    ]
    return _picture(rungs, "probability", bars, _ticks(0.0, 1.0, is_log=False))


def _stacks(rungs: Sequence[RungSummary], most: int) -> list[str]:
    width, bars = _step(len(rungs)) * 0.7, []
    for index, rung in enumerate(rungs):
        below = 0
        for kind, name in _KINDS:
            count = getattr(rung, kind)
            if count:
                top, bottom = _y(below + count, 0, most), _y(below, 0, most)
                bars.append(
                    f'<rect class="{kind}" x="{_x(index, len(rungs)) - width / 2:.1f}" y="{top:.1f}"'
                    f' width="{width:.1f}" height="{bottom - top:.1f}">'
                    f"<title>{escape(rung.name)}: {count} {name}</title></rect>"
                )
                below += count
    return bars


def _picture(rungs: Sequence[RungSummary], title: str, marks: Sequence[str], ticks: Sequence[tuple[float, str]]) -> str:
    every = math.ceil(len(rungs) / _MOST_LABELS)
    base = HEIGHT - BOTTOM
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)} by rung">']
    for y, text in ticks:
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{text}</text>')
    middle = (TOP + base) / 2
    parts.append(
        f'<text x="14" y="{middle}" text-anchor="middle" transform="rotate(-90 14 {middle})">{escape(title)}</text>'
    )
    for index in range(0, len(rungs), every):
        x, name = _x(index, len(rungs)), rungs[index].name
        label = name if len(name) <= _LONGEST_LABEL else f"{name[: _LONGEST_LABEL - 1]}…"
        turn = f'text-anchor="end" transform="rotate(-40 {x:.1f} {base + 14})"'
        parts.append(f'<text x="{x:.1f}" y="{base + 14}" {turn}>{escape(label)}</text>')
    return "".join([*parts, *marks, "</svg>"])


def _ticks(low: float, high: float, *, is_log: bool) -> list[tuple[float, str]]:
    """Heights and labels of about five lines."""
    if is_log:
        values = [low * (high / low) ** (index / 4) for index in range(5)]
    else:
        values = [low + (high - low) * index / 4 for index in range(5)]
    return [(_y(value, low, high, is_log=is_log), f"{value:.3g}") for value in values]


def _limits(values: Sequence[float], *, is_log: bool) -> tuple[float, float]:
    """A little more than the values take."""
    low, high = min(values), max(values)
    if is_log:
        return low / 1.1, high * 1.1
    margin = 0.05 * (high - low) or abs(high) * 0.05 or 1.0
    return low - margin, high + margin


def _step(count: int) -> float:
    return (WIDTH - LEFT - RIGHT) / max(count, 1)


def _x(index: int, count: int) -> float:
    return LEFT + _step(count) * (index + 0.5)


def _y(value: float, low: float, high: float, *, is_log: bool = False) -> float:
    if is_log:
        value, low, high = math.log(value), math.log(low), math.log(high)
    share = (value - low) / (high - low)
    return TOP + (1 - share) * (HEIGHT - TOP - BOTTOM)
