"""The rendering of an answer, for a terminal and as one self-contained page, and the progress until then.

In: an `Answer`. Out: text, or HTML. The page has no script and fetches nothing, and everything in it is escaped. Its
picture of the results is SVG, whose colours come from the style sheet; each mark has a `<title>` that a browser shows
under the pointer.

Source: Wilson, Probable inference, the law of succession, and statistical inference (1927), for a rate's interval.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from statistics import median
from types import TracebackType

from rich.console import Console
from rich.status import Status
from rich.table import Table
from rich.text import Text

from nightjar_ci.bisect.result.answer import Answer, RungSummary, Side, count_digits
from nightjar_ci.bisect.result.difference import Change
from nightjar_ci.bisect.state import Probe
from nightjar_ci.formats.documents import write_json, write_text
from nightjar_ci.report.html import make_templates, show_duration
from nightjar_ci.untrusted.console import open_console

_BAR = 12  # characters of the longest bar on a terminal
_MOST_ROWS = 60  # of a table on a terminal; the page has all
_MOST_VALUES = 12  # of a rung in a table
WIDTH, HEIGHT = 1000, 296
LEFT, RIGHT, TOP, BOTTOM = 100, 10, 12, 108
_MOST_LABELS = 24  # of rungs below the axis; others have none
_LONGEST_LABEL = 18
_WIDEST_BAR = 28.0
_Z = 1.96  # of an interval of 95 %


def write_answer(answer: Answer, folder: Path) -> Path:
    """Writes `answer.json` and `report.html`; returns the page."""
    write_json(folder / "answer.json", answer)
    page = folder / "report.html"
    write_text(page, render_html(answer))
    return page


def render_html(answer: Answer) -> str:
    environment = make_templates("nightjar_ci.bisect.result")
    environment.filters["result"] = show_result
    return environment.get_template("page.html.j2").render(
        answer=answer,
        in_short=_in_short(answer),
        command=shlex.join(answer.command),
        figure=draw_results(answer),  # which escapes
        digits=_count_digits(answer),
    )


def print_answer(answer: Answer, console: Console) -> None:
    """The answer on a terminal: conclusion, probability, change, and commands to rerun it."""
    console.print(answer.title, markup=False, style="bold")
    console.print(_in_short(answer), markup=False)
    console.print(f"{answer.tests} tests, {answer.builds} builds, {show_duration(answer.duration_s)}", markup=False)
    console.print(_table(answer))
    for old, new, changes in answer.steps:
        _print_step(old, new, changes, console, alone=len(answer.steps) == 1)
    if answer.programs:
        console.print("The compiled programs", markup=False, style="bold")
    for line in answer.programs:
        console.print(f"  {line}", markup=False, soft_wrap=True)
    for text in answer.explained:
        console.print(text, markup=False, soft_wrap=True)
    for note in answer.notes:
        console.print(f"note: {note}", markup=False)


def _print_step(old: Side, new: Side, changes: Sequence[Change], console: Console, *, alone: bool) -> None:
    if changes:
        console.print("What changed" if alone else f"What changed with {new.name}", style="bold", markup=False)
    for change in changes:
        console.print(f"  {_name_change(change)}  {' '.join(change.links)}".rstrip(), markup=False)
        for line in change.details[:8]:
            console.print(f"    {line}", markup=False)
    for side in (old, new):
        answers = f" ({side.answers})" if alone else ""  # between two changes there is a third level
        console.print(f"Run {side.name}{answers} again", markup=False, style="bold")
        console.print(f"  {side.reproduce}", markup=False, soft_wrap=True)


def _in_short(answer: Answer) -> str:
    """The effect if the culprit is named; else the search's reason why it is not."""
    if answer.found and answer.effect is not None:
        return f"{answer.metric or 'failed tests'}: {answer.effect}"
    return answer.message


def show_result(probe: Probe, seeks_fix: bool = False) -> str:
    if probe.outcome == "cannot_tell":
        return f"cannot tell: {probe.why or probe.state}"
    if probe.value is not None:
        return f"{probe.value:.9g}" + ("" if probe.beside is None else f" beside {probe.beside:.9g}")
    is_good = (probe.outcome == "good") != seeks_fix  # a search for a fix has them swapped
    return ("good" if is_good else "bad") + _in_brackets(probe.why)


def _in_brackets(text: str | None) -> str:
    if not text:
        return ""
    return f" ({text})"


def _table(answer: Answer) -> Table:
    table = Table("rung", "date", "tests", box=None, pad_edge=False)
    table.add_column("probability", no_wrap=True)
    most = max((row.probability or 0.0 for row in answer.places), default=0.0)
    shown = [row for row in answer.places if _is_telling(row, answer)][:_MOST_ROWS]
    for row in shown:
        chance = ""
        if row.probability is not None:
            bar = "█" * round(_BAR * row.probability / (most or 1.0))
            chance = f"{row.probability:.4f} {bar}"
        name = f"{row.name}{_in_brackets(row.note)}"
        style = "bold" if row.name in (*answer.culprits, *answer.second) else ""
        tests = Text(_count_tests(row, _count_digits(answer)))
        table.add_row(Text(name, style=style), (row.when or "")[:10], tests, chance)
    return table


def _is_telling(row: RungSummary, answer: Answer) -> bool:
    tested = row.good + row.bad + row.cannot_tell + len(row.values)
    return len(answer.places) <= 16 or bool(tested) or (row.probability or 0.0) > 0.01


def _count_digits(answer: Answer) -> int:
    return count_digits([median(row.values) for row in (*answer.places[:1], *answer.places[-1:]) if row.values])


def _count_tests(row: RungSummary, digits: int) -> str:
    """Values of a metric, and how often the test told or not: `1.5 1.51, 1 cannot tell`."""
    values = " ".join(f"{value:.{digits}g}" for value in row.values[:_MOST_VALUES])
    if len(row.values) > _MOST_VALUES:
        values += f" … ({len(row.values)})"
    counts = ((row.good, "good"), (row.bad, "bad"), (row.cannot_tell, "cannot tell"))
    return ", ".join(filter(None, (values, *(f"{count} {word}" for count, word in counts if count))))


def _name_change(change: Change) -> str:
    if change.old or change.new:
        return f"{change.name} {change.old or 'absent'} → {change.new or 'absent'}"
    return change.name


def to_json(answer: Answer) -> str:
    return json.dumps(answer.model_dump(mode="json", by_alias=True), indent=1)


def draw_results(answer: Answer) -> str:
    """A dot for each value, or a bar for each failure rate, by rung; empty if no test could tell."""
    values = [value for rung in answer.places for value in rung.values]
    low, high, is_log, title, form = 0.0, 1.0, False, "tests that fail", ".0%"
    if values:
        low, high, is_log = _find_limits(values)
        digits = count_digits([low + (high - low) * quarter / 4 for quarter in range(5)], least=3)
        title, form = escape(answer.metric or ""), f".{digits}g"
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


class Progress:
    """Shows one line per probe on stderr, and below the running tests; use it as a context manager."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or open_console(stderr=True, highlight=False, soft_wrap=True)
        self._status: Status | None = None
        self.probes, self.seeks_fix = 0, False
        self._last = ""

    def __enter__(self) -> Progress:
        if self._console.is_terminal:
            self._status = self._console.status("")
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()
        if kind is KeyboardInterrupt:
            self._console.print("interrupted; the same command goes on from here")

    def say(self, line: str) -> None:
        if self._status is not None:
            self._status.update(Text(line[: max(20, self._console.width - 4)]))
        elif line != self._last:
            self._last = line
            self._console.print(line, markup=False)

    def on_probe(self, probe: Probe) -> None:
        self.probes += 1
        build = f"build {show_duration(probe.build_s)}, " if probe.build_s else ""
        line = f"[{self.probes}] {probe.name}: {show_result(probe, self.seeks_fix)}"
        self._console.print(f"{line} ({build}test {show_duration(probe.test_s)})", markup=False)
