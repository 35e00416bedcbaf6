"""The verdicts of a night as a table in the terminal, and the causes of the ones that are not ok.

In: verdicts and causes. Out: a rich table, worst first, a line for each note on series that were not judged; for each
cause its first night, the changes in that night, and the command to run.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from nightjar_ci.causes.causes import Cause
from nightjar_ci.formats.verdict import NightVerdicts, Status, status_of
from nightjar_ci.judges.finding import count
from nightjar_ci.report.contents import MOST_CAUSES, CheckedPart

_STYLES: dict[Status, str] = {"regressed": "bold red", "cannot_tell": "yellow", "improved": "cyan", "ok": "green"}


def print_verdicts(verdicts: NightVerdicts, console: Console) -> None:
    """Prints the table and the notes; text of jobs is printed literally."""
    if verdicts.verdicts:
        console.print(render_table(verdicts))
    for note in verdicts.notes:
        console.print(note, markup=False, highlight=False, soft_wrap=True)


def print_causes(causes: Sequence[Cause], console: Console) -> None:
    """Prints for each cause its first night, the changes in that night, and the next command to run."""
    bad = [cause for cause in causes if cause.kind != "improved"]
    for cause in bad[:MOST_CAUSES]:
        lines = [cause.title, f"  since: {cause.when}", f"  what changed: {cause.what_changed}"]
        if cause.command:
            lines.append(f"  run: {cause.command}")
        for line in lines:
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    if len(bad) > MOST_CAUSES:
        console.print(f"{len(bad) - MOST_CAUSES} more causes are in the report")


def print_checked(checked: Sequence[CheckedPart], console: Console) -> None:
    """Prints the tested versions of each job, the count of its checked numbers, and its speed."""
    for part in checked:
        line = f"{part.job}: {part.versions}: {count(len(part.numbers), 'number')} checked"
        if part.speed:
            line += f", {part.speed}"
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def render_table(verdicts: NightVerdicts) -> Table:
    table = Table(title=Text(f"Verdicts of {verdicts.night}"), title_justify="left", show_lines=True, expand=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("judge", no_wrap=True)
    table.add_column("series and explanation", overflow="fold", ratio=1)
    for verdict in verdicts.verdicts:
        explanation = Text(verdict.series, style="bold").append(f"\n{verdict.explanation}", style="not bold")
        table.add_row(Text(status_of(verdict), style=_STYLES[verdict.status]), Text(verdict.judge), explanation)
    return table
