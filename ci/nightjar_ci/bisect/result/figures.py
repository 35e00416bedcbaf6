"""The picture of a metric's values at each rung, as SVG. Pure.

In: an `Answer`. Out: an SVG element for the page, which needs no script. Colours come from the page's style sheet, and
each dot has a `<title>` that a browser shows under the pointer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from nightjar_ci.bisect.result.answer import Answer

WIDTH, HEIGHT = 1000, 296
LEFT, RIGHT, TOP, BOTTOM = 70, 10, 12, 108
_MOST_LABELS = 24  # of rungs below the axis; others have none
_LONGEST_LABEL = 18


def draw_values(answer: Answer) -> str:
    """A dot for each value, by rung; empty without values, as of an exit code."""
    values = [value for rung in answer.places for value in rung.values]
    if not values:
        return ""
    low, high, is_log = _find_limits(values)

    def place(value: float) -> float:
        at, bottom, top = (math.log(number) if is_log else number for number in (value, low, high))
        return TOP + (top - at) / (top - bottom) * (HEIGHT - TOP - BOTTOM)

    title, base = escape(answer.metric or ""), HEIGHT - BOTTOM
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title} by rung">']
    for quarter in range(5):
        tick = low * (high / low) ** (quarter / 4) if is_log else low + (high - low) * quarter / 4
        y = place(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:.3g}</text>')
    middle = (TOP + base) / 2
    parts.append(f'<text x="14" y="{middle}" text-anchor="middle" transform="rotate(-90 14 {middle})">{title}</text>')
    every, step = math.ceil(len(answer.places) / _MOST_LABELS), (WIDTH - LEFT - RIGHT) / len(answer.places)
    for index, rung in enumerate(answer.places):
        x, name = LEFT + step * (index + 0.5), escape(rung.name)
        if index % every == 0:
            label = rung.name if len(rung.name) <= _LONGEST_LABEL else f"{rung.name[: _LONGEST_LABEL - 1]}…"
            turn = f'text-anchor="end" transform="rotate(-40 {x:.1f} {base + 14})"'
            parts.append(f'<text x="{x:.1f}" y="{base + 14}" {turn}>{escape(label)}</text>')
        for value in rung.values:
            dot = f'<circle class="dot" cx="{x:.1f}" cy="{place(value):.1f}" r="4">'
            parts.append(f"{dot}<title>{name}: {value:.6g}</title></circle>")
    return "".join([*parts, "</svg>"])


def _find_limits(values: Sequence[float]) -> tuple[float, float, bool]:
    """A little more than the values take, and whether their logarithms are drawn."""
    low, high = min(values), max(values)
    if low > 0 and high > 10 * low:
        return low / 1.1, high * 1.1, True
    margin = 0.05 * (high - low) or abs(high) * 0.05 or 1.0
    return low - margin, high + margin, False
