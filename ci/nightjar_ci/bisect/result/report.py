"""The rendering of an answer, for a terminal and as one self-contained page.

In: an `Answer`. Out: text, or HTML. The page has no script and fetches nothing, and everything in it is escaped.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from nightjar_ci.bisect.result.answer import Answer, RungSummary, Side
from nightjar_ci.bisect.result.difference import Change
from nightjar_ci.bisect.result.figures import draw_results
from nightjar_ci.bisect.state import Probe
from nightjar_ci.formats.documents import write_json, write_text
from nightjar_ci.report.html import make_templates, show_duration

_BAR = 12  # characters of the longest bar on a terminal
_MOST_ROWS = 60  # of a table on a terminal; the page has all
_MOST_VALUES = 12  # of a rung in a table


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
    """The change at one culprit, and commands to rerun both of its sides."""
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


def show_result(probe: Probe) -> str:
    if probe.outcome == "cannot_tell":
        return f"cannot tell: {probe.why or probe.state}"
    if probe.value is not None:
        return f"{probe.value:.6g}" + ("" if probe.beside is None else f" beside {probe.beside:.6g}")
    return f"{probe.outcome}{_in_brackets(probe.why)}"


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
        table.add_row(Text(name, style=style), (row.when or "")[:10], Text(_count_tests(row)), chance)
    return table


def _is_telling(row: RungSummary, answer: Answer) -> bool:
    tested = row.good + row.bad + row.cannot_tell + len(row.values)
    return len(answer.places) <= 16 or bool(tested) or (row.probability or 0.0) > 0.01


def _count_tests(row: RungSummary) -> str:
    """Values of a metric, and how often the test told or not: `1.5 1.51, 1 cannot tell`."""
    values = " ".join(f"{value:.4g}" for value in row.values[:_MOST_VALUES])
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
