"""`nightjar-ci accept`: say that a change of a series is wanted, in a file to commit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from nightjar_ci.commands.gate import Baselines, Policies


def command(
    series: Annotated[str, typer.Argument(help="A series, such as gpt_tiny-train-cpu-f32-dp1/step_time.")],
    reason: Annotated[str, typer.Option(help="Why the change is wanted.", show_default=False)],
    night: Annotated[
        str | None, typer.Option(help="First night of the new level; by default where the series last changed.")
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

    Example: nightjar-ci accept gpt_tiny-train-cpu-f32-dp1/step_time --reason "twice the vocabulary, #812"
    """
    from nightjar_ci.baselines.baseline import FactsBaseline, convergence_path, facts_path, render
    from nightjar_ci.formats.documents import write_text
    from nightjar_ci.formats.night_folder import read_night, read_results
    from nightjar_ci.formats.policy import read_policies
    from nightjar_ci.gate.accept import accept, remake_baselines
    from nightjar_ci.gate.advice import render_baseline
    from nightjar_ci.settings import read_settings
    from nightjar_ci.store import open_store

    store, cell = open_store(read_settings()), series.partition("/")[0]
    latest = None if from_night is None else read_night(from_night).id
    accepted = accept(
        store, baselines, read_policies(policies), series, reason=reason, night=night, by=by, latest=latest
    )
    results = store.results_of(cell, accepted.entry.night) if from_night is None else read_results(from_night)
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
