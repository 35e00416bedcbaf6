"""`nightjar-ci facts`: the differences between the compiled programs of two results, in words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def command(
    before: Annotated[Path, typer.Argument(help="A result.json, or the folder with it.", show_default=False)],
    after: Annotated[Path, typer.Argument(help="The result.json to compare with it.", show_default=False)],
    tolerance: Annotated[
        list[str] | None,
        typer.Option(metavar="GLOB=FRACTION", help="Allowed relative change of matching facts; repeat for more."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON.")] = False,
) -> None:
    """Compare the compile facts of two results.

    Exit code 0: no fact differs by more than its tolerance; 1: one does.

    Example: nightjar-ci facts good/result.json new/result.json --tolerance "memory.*=0.02"
    """
    from nightjar_ci.errors import ExitCode, InputError
    from nightjar_ci.formats.policy import FactsPolicy
    from nightjar_ci.formats.run_record import read_run
    from nightjar_ci.judges.facts.diff import describe_changes
    from nightjar_ci.judges.facts.explain import explain_changes, unexplained

    limits: dict[str, float] = {}
    for setting in tolerance or []:
        glob, _, fraction = setting.rpartition("=")
        try:
            limits[glob] = float(fraction)
        except ValueError:
            limits[glob] = -1.0
        if not glob or not limits[glob] >= 0:
            raise InputError(f"--tolerance {setting}: expected GLOB=FRACTION, such as memory.*=0.02.")
    policy = FactsPolicy(tolerance=limits)
    files = (path / "result.json" if path.is_dir() else path for path in (before, after))
    old, new = ({facts.program: facts for facts in read_run(path).facts} for path in files)
    programs = []
    for program in sorted({*old, *new}):
        was, now = old.get(program), new.get(program)
        changes, meanings = describe_changes(was, now, policy), []
        if was is not None and now is not None:
            meanings = explain_changes(was, now, policy)
        programs.append(
            {
                "program": program,
                "meanings": [meaning.text for meaning in meanings],
                "facts": list(changes.values()),
                "unexplained": [changes[name] for name in unexplained(changes, meanings)],
            }
        )
    if as_json:
        typer.echo(json.dumps({"schema": "nightjar.facts-diff/1", "programs": programs}))
    else:
        for entry in programs:
            typer.echo(f"{entry['program']}: {len(entry['facts'])} facts differ")
            for line in (*entry["meanings"], *(f"  {line}" for line in entry["facts"])):
                typer.echo(line)
            if entry["meanings"] and entry["unexplained"]:
                typer.echo(f"not explained: {', '.join(entry['unexplained'])}")
    if any(entry["facts"] for entry in programs):
        raise typer.Exit(ExitCode.NO)
