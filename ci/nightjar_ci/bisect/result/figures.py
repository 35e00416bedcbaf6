"""The picture of the results at each rung, as SVG: values of a metric, or failure rates. Pure.

In: an `Answer`. Out: an SVG element for the page, which needs no script. Colours come from the page's style sheet, and
each mark has a `<title>` that a browser shows under the pointer.

Source: Wilson, Probable inference, the law of succession, and statistical inference (1927), for a rate's interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

from nightjar_ci.bisect.result.answer import Answer, RungSummary

WIDTH, HEIGHT = 1000, 296
LEFT, RIGHT, TOP, BOTTOM = 100, 10, 12, 108
_MOST_LABELS = 24  # of rungs below the axis; others have none
_LONGEST_LABEL = 18
_WIDEST_BAR = 28.0
_Z = 1.96  # of an interval of 95 %


def draw_results(answer: Answer) -> str:
    """A dot for each value, or a bar for each failure rate, by rung; empty if no test could tell."""
    values = [value for rung in answer.places for value in rung.values]
    low, high, is_log, title, form = 0.0, 1.0, False, "tests that fail", ".0%"
    if values:
        low, high, is_log = _find_limits(values)
        title, form = escape(answer.metric or ""), ".3g"
    elif not any(rung.good + rung.bad for rung in answer.places):
        return ""

    def place(value: float) -> float:
        at, bottom, top = (math.log(number) if is_log else number for number in (value, low, high))
        return TOP + (top - at) / (top - bottom) * (HEIGHT - TOP - BOTTOM)

    base = HEIGHT - BOTTOM
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title} by rung">']
    for quarter in range(5):
        tick = low * (high / low) ** (quarter / 4) if is_log else low + (high - low) * quarter / 4
        y = place(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:{form}}</text>')
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
        if not values and rung.good + rung.bad:
            parts.append(_draw_rate(rung, x, min(0.6 * step, _WIDEST_BAR), place))
    return "".join([*parts, "</svg>"])


def _find_limits(values: Sequence[float]) -> tuple[float, float, bool]:
    """A little more than the values take, and whether their logarithms are drawn."""
    low, high = min(values), max(values)
    if low > 0 and high > 10 * low:
        return low / 1.1, high * 1.1, True
    margin = 0.05 * (high - low) or abs(high) * 0.05 or 1.0
    return low - margin, high + margin, False


def _draw_rate(rung: RungSummary, x: float, width: float, place: Callable[[float], float]) -> str:
    """The bar of a failure rate, and a line from end to end of its interval."""
    tests = rung.good + rung.bad
    low, high = find_interval(rung.bad, tests)
    top, zero = place(rung.bad / tests), place(0)
    text = f"{escape(rung.name)}: {rung.bad} of {tests} fail ({low:.0%} to {high:.0%}, 95 %)"
    bar = f'<rect class="dot" x="{x - width / 2:.1f}" y="{top:.1f}" width="{width:.1f}" height="{zero - top:.1f}"/>'
    line = f'<line class="interval" x1="{x:.1f}" x2="{x:.1f}" y1="{place(low):.1f}" y2="{place(high):.1f}"/>'
    return f"<g>{bar}{line}<title>{text}</title></g>"


def find_interval(failed: int, tests: int) -> tuple[float, float]:
    """Wilson's interval of a failure rate.

    >>> [round(end, 3) for end in find_interval(0, 8)], [round(end, 3) for end in find_interval(3, 8)]
    ([0.0, 0.324], [0.137, 0.694])
    """
    centre = (failed + _Z**2 / 2) / (tests + _Z**2)
    half = _Z * math.sqrt(failed * (tests - failed) / tests + _Z**2 / 4) / (tests + _Z**2)
    return max(0.0, centre - half), min(1.0, centre + half)
