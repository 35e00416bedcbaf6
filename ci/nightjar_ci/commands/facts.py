"""`nightjar-ci facts`: what the compiler did otherwise between two results, in words."""

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
        typer.Option(metavar="GLOB=FRACTION", help="Relative change allowed of facts so named; may be repeated."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON.")] = False,
) -> None:
    """Compare the compile facts of two results.

    Exit code 0: nothing differs by more than the tolerances; 1: something does.

    Example: nightjar-ci facts good/result.json new/result.json --tolerance "memory.*=0.02"
    """
    from nightjar_ci.errors import InputError
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
    old, new = (
        {one.program: one for one in read_run(path / "result.json" if path.is_dir() else path).facts}
        for path in (before, after)
    )
    found = []
    for program in sorted({*old, *new}):
        was, now = old.get(program), new.get(program)
        meanings = explain_changes(was, now, policy) if was is not None and now is not None else []
        changes = describe_changes(was, now, policy)
        found.append(
            {
                "program": program,
                "meanings": [meaning.text for meaning in meanings],
                "facts": list(changes.values()),
                "unexplained": [changes[name] for name in unexplained(changes, meanings)],
            }
        )
    different = any(one["facts"] for one in found)
    if as_json:
        typer.echo(json.dumps({"schema": "nightjar.facts-diff/1", "programs": found}))
    else:
        for one in found:
            typer.echo(f"{one['program']}: {len(one['facts'])} facts differ")
            for line in (*one["meanings"], *(f"  {line}" for line in one["facts"])):
                typer.echo(line)
            if one["meanings"] and one["unexplained"]:
                typer.echo(f"no sentence explains: {', '.join(one['unexplained'])}")
    if different:
        raise typer.Exit(1)
