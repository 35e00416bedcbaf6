"""`nightjar-ci accept`: record an intended change in a file to commit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nightjar_ci.commands.options import Baselines, Policies

if TYPE_CHECKING:
    from nightjar_ci.gate.accept import Acceptance, Remade


def command(
    series: Annotated[
        str, typer.Argument(help="A series, such as gpt_tiny-train-cpu-f32-dp1/step_time; with --ended also a cell.")
    ],
    reason: Annotated[str, typer.Option(help="Reason for the change.", show_default=False)],
    night: Annotated[
        str | None, typer.Option(help="First night of the new level; default: the series' latest change.")
    ] = None,
    ended: Annotated[
        bool, typer.Option("--ended", help="The series is no longer measured: from --night on it is not due.")
    ] = False,
    renamed_to: Annotated[
        str | None, typer.Option(help="The series continues under this name and keeps its history.")
    ] = None,
    from_night: Annotated[
        Path | None, typer.Option("--from", help="Make baselines from this night folder; default: from the store.")
    ] = None,
    baselines: Baselines = None,
    policies: Policies = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the file, write nothing.")] = False,
) -> None:
    """Accept an intended change: record it in a file that you commit.

    Adds an entry to the series' file in the folder of baselines, and prints its path. From that night on the gate
    compares the series with its new level. Curves and compile facts are judged against a baseline: it is remade from
    the results of that night (in the store, or --from), and its path is printed too. If there are too few results
    (curves need ten seeds), stderr names the command that makes the baseline.

    With --ended the series, or all series of a cell, are not due until they are measured again. Delete the entry to
    undo it.

    Example: nightjar-ci accept gpt_tiny-train-cpu-f32-dp1/step_time --reason "twice the vocabulary, #812"
    """
    from nightjar_ci.formats.documents import write_text
    from nightjar_ci.formats.night_folder import read_night
    from nightjar_ci.formats.night_results import read_night_results
    from nightjar_ci.formats.policy import read_policies
    from nightjar_ci.formats.project_files import find_baselines, find_policies
    from nightjar_ci.formats.series_name import parse_series_name
    from nightjar_ci.gate.accept import accept, accept_end, remake_baselines
    from nightjar_ci.gate.advice import render_baseline
    from nightjar_ci.settings import read_settings
    from nightjar_ci.store import open_store

    policies, baselines = find_policies(policies), find_baselines(baselines)
    store, cell = open_store(read_settings()), parse_series_name(series).cell
    if ended or renamed_to is not None:
        _accept_end(
            accept_end(store, baselines, series, reason=reason, night=night, renamed_to=renamed_to), dry_run=dry_run
        )
        return
    latest = None
    if from_night is not None:
        latest = read_night(from_night).id
    accepted = accept(store, baselines, read_policies(policies), series, reason=reason, night=night, latest=latest)
    if from_night is None:
        made, refused = remake_baselines(
            series, accepted.judges, store.results_of(cell, accepted.entry.night), baselines
        )
    else:
        made, refused = remake_baselines(series, accepted.judges, read_night_results(from_night), baselines)
    files = {accepted.path: accepted.text, **dict(_render(baseline, baselines, cell) for baseline in made)}
    if not dry_run:
        for path, text in files.items():
            write_text(path, text)
    only_facts = "convergence" not in accepted.judges
    remake = [
        render_baseline(cell, policies, baselines, facts_only=only_facts)
        or f"no matrix was found that has the cell {cell}: make its baseline with the matrix that has it"
        for _ in refused[:1]
    ]
    if dry_run:
        print(accepted.text)
        for path in files:
            typer.echo(f"would write {path}", err=True)
    else:
        print("\n".join(map(str, files)))
    for line in (*(f"baseline not made: {why}" for why in refused), *remake):
        typer.echo(line, err=True)


def _render(baseline: Remade, folder: Path, cell: str) -> tuple[Path, str]:
    from nightjar_ci.baselines.baseline import FactsBaseline, convergence_path, facts_path, render

    if isinstance(baseline, FactsBaseline):
        return facts_path(folder, cell, baseline.environment.facts_key), render(baseline)
    return convergence_path(folder, cell), render(baseline)


def _accept_end(ends: Sequence[Acceptance], *, dry_run: bool) -> None:
    """Writes a file for each series that has ended."""
    from nightjar_ci.formats.documents import write_text

    for end in ends:
        if dry_run:
            typer.echo(f"would write {end.path}", err=True)
            print(end.text)
        else:
            write_text(end.path, end.text)
            print(end.path)
