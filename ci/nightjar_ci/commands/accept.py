"""`nightjar-ci accept`: say that a change of a series is wanted, in a file to commit."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nightjar_ci.commands.gate import Baselines, Policies

if TYPE_CHECKING:
    from nightjar_ci.gate.accept import Acceptance


def command(
    series: Annotated[
        str, typer.Argument(help="A series, such as gpt_tiny-train-cpu-f32-dp1/step_time; with --ended also a cell.")
    ],
    reason: Annotated[str, typer.Option(help="Why the change is wanted.", show_default=False)],
    night: Annotated[
        str | None, typer.Option(help="First night of the new level; by default where the series last changed.")
    ] = None,
    ended: Annotated[
        bool, typer.Option("--ended", help="It is not measured any more: it is not due from --night on.")
    ] = False,
    renamed_to: Annotated[
        str | None, typer.Option(help="It has ended and goes on under this name, with its history.")
    ] = None,
    from_night: Annotated[
        Path | None, typer.Option("--from", help="Make baselines of this night folder; by default of the store.")
    ] = None,
    by: Annotated[str | None, typer.Option(help="Who says so; by default git's user.")] = None,
    baselines: Baselines = Path("ci/baselines"),
    policies: Policies = Path("ci/policies.toml"),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the file, write nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was written as JSON.")] = False,
) -> None:
    """Accept an intended change: record it in a file that you commit.

    Adds an entry to the file of the series in the folder of baselines, and prints its path. From that night on the gate
    compares the series with its new level. Curves and compile facts are judged against a baseline: it is made anew of
    the results of that night (of the store, or of --from), and its path printed too. Where they do not suffice (curves
    need ten seeds), stderr names the command that makes it.

    With --ended the series, or all those of a cell, are not due any more, until they are measured again. Delete the
    entry to take it back.

    Example: nightjar-ci accept gpt_tiny-train-cpu-f32-dp1/step_time --reason "twice the vocabulary, #812"
    """
    from nightjar_ci.baselines.baseline import FactsBaseline, convergence_path, facts_path, render
    from nightjar_ci.formats.documents import write_text
    from nightjar_ci.formats.night_folder import read_night
    from nightjar_ci.formats.night_results import read_night_results
    from nightjar_ci.formats.policy import read_policies
    from nightjar_ci.gate.accept import accept, accept_end, remake_baselines
    from nightjar_ci.gate.advice import render_baseline
    from nightjar_ci.settings import read_settings
    from nightjar_ci.store import open_store

    store, cell = open_store(read_settings()), series.partition("/")[0]
    if ended or renamed_to is not None:
        _accept_end(
            accept_end(store, baselines, series, reason=reason, night=night, by=by, renamed_to=renamed_to),
            dry_run=dry_run,
            as_json=as_json,
        )
        return
    latest = None if from_night is None else read_night(from_night).id
    accepted = accept(
        store, baselines, read_policies(policies), series, reason=reason, night=night, by=by, latest=latest
    )
    results = store.results_of(cell, accepted.entry.night) if from_night is None else read_night_results(from_night)
    made, refused = remake_baselines(series, accepted.judges, results, baselines)
    files = {accepted.path: accepted.text}
    for one in made:
        facts = isinstance(one, FactsBaseline)
        path = facts_path(baselines, cell, one.environment.facts_key) if facts else convergence_path(baselines, cell)
        files[path] = render(one)
    if not dry_run:
        for path, text in files.items():
            write_text(path, text)
    only_facts = "convergence" not in accepted.judges
    remake = [
        render_baseline(cell, policies, baselines, facts_only=only_facts)
        or f"no matrix beside {policies} has the cell {cell}: its baseline has to be made where that is"
        for _ in refused[:1]
    ]
    if as_json:
        entry = accepted.entry.model_dump()
        shown = {"path": str(accepted.path), "series": series, "entry": entry, "remake": remake}
        print(json.dumps({**shown, "baselines": [str(path) for path in files if path != accepted.path]}))
    else:
        print(accepted.text if dry_run else "\n".join(map(str, files)))
    if dry_run:
        for path in files:
            typer.echo(f"would write {path}", err=True)
    for line in (*(f"baseline not made: {why}" for why in refused), *remake):
        typer.echo(line, err=True)


def _accept_end(ends: Sequence[Acceptance], *, dry_run: bool, as_json: bool) -> None:
    """Writes that series have ended, one file for each."""
    from nightjar_ci.formats.documents import write_text

    for one in ends:
        if not dry_run:
            write_text(one.path, one.text)
        elif not as_json:
            typer.echo(f"would write {one.path}", err=True)
    if as_json:
        print(json.dumps([{"path": str(one.path), "entry": one.entry.model_dump()} for one in ends]))
    else:
        print("\n".join(one.text if dry_run else str(one.path) for one in ends))
