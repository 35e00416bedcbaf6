"""The verdicts of a night as a table in the terminal.

In: verdicts. Out: a rich table, worst first, and a line for each note on what was not judged.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from nightjar_ci.formats.verdict import NightVerdicts, Status, status_of
from nightjar_ci.judges.finding import count
from nightjar_ci.report.contents import CheckedPart

_STYLES: dict[Status, str] = {"regressed": "bold red", "cannot_tell": "yellow", "improved": "cyan", "ok": "green"}


def print_verdicts(verdicts: NightVerdicts, console: Console) -> None:
    """Prints the table and the notes; text of jobs is printed literally."""
    if verdicts.verdicts:
        console.print(render_table(verdicts))
    for note in verdicts.notes:
        console.print(note, markup=False, highlight=False, soft_wrap=True)


def print_checked(checked: Sequence[CheckedPart], console: Console) -> None:
    """Prints the tested versions of each job, how many numbers it checked, and its speed."""
    for part in checked:
        line = f"{part.job}: {part.versions}: {count(len(part.numbers), 'number')} checked"
        if part.speed:
            line += f", {part.speed}"
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def render_table(verdicts: NightVerdicts) -> Table:
    """The verdicts with their explanations."""
    table = Table(title=Text(f"Verdicts of {verdicts.night}"), title_justify="left", show_lines=True, expand=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("judge", no_wrap=True)
    table.add_column("series and explanation", overflow="fold", ratio=1)
    for verdict in verdicts.verdicts:
        explanation = Text(verdict.series, style="bold").append(f"\n{verdict.explanation}", style="not bold")
        table.add_row(Text(status_of(verdict), style=_STYLES[verdict.status]), Text(verdict.judge), explanation)
    return table
