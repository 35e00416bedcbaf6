"""`nightjar-ci show`: the schema of a file format, or what differs between two results."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from nightjar_ci.commands.options import Json
from nightjar_ci.errors import ExitCode, InputError

# format to the module and class of its model; only the one asked for is imported
FORMATS = {
    "run": ("nightjar_ci.formats.run_record", "RunRecord"),
    "matrix": ("nightjar_ci.night.matrix", "Matrix"),
    "night": ("nightjar_ci.formats.night_folder", "Night"),
    "verdicts": ("nightjar_ci.formats.verdict", "NightVerdicts"),
    "policies": ("nightjar_ci.formats.policy", "Policies"),
    "adapter": ("nightjar_ci.formats.adapter", "AdapterFile"),
    "accepted": ("nightjar_ci.baselines.accepted", "Accepted"),
    "images": ("nightjar_ci.images.publish.nightly_index", "NightlyIndex"),
    "baseline": ("nightjar_ci.baselines.baseline", "ConvergenceBaseline"),
}


def command(
    what: Annotated[str, typer.Argument(help=f"A result.json, or a format: {', '.join(FORMATS)}.", show_default=False)],
    after: Annotated[
        Path | None, typer.Argument(help="A result.json whose compile facts to compare with WHAT.", show_default=False)
    ] = None,
    tolerance: Annotated[
        list[str] | None,
        typer.Option(metavar="GLOB=FRACTION", help="Allowed relative change of matching facts; repeat for more."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show a format's schema, or two results' facts.

    Of two results (files, or the folders with them), exit code 1: a fact differs by more than its tolerance; 4: neither
    has facts.

    Example: nightjar-ci show good/result.json new/result.json --tolerance "memory.*=0.02"
    """
    if after is not None:
        _show_facts(Path(what), after, tolerance or [], as_json=as_json)
    elif what in FORMATS:
        module, model = FORMATS[what]
        print(json.dumps(getattr(import_module(module), model).model_json_schema(by_alias=True), indent=1))
    else:
        raise InputError(
            f"{what!r} is not a format: expected one of {', '.join(FORMATS)}.",
            "to compare two results, name both; the jobs of a matrix: nightjar-ci run MATRIX --dry-run",
        )


def _show_facts(before: Path, after: Path, tolerance: list[str], *, as_json: bool) -> None:
    from nightjar_ci.formats.policy import FactsPolicy
    from nightjar_ci.formats.run_record import read_run
    from nightjar_ci.judges.facts.diff import describe_changes
    from nightjar_ci.judges.facts.explain import explain_changes, unexplained

    policy = FactsPolicy(tolerance=_read_limits(tolerance))
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
        typer.echo(json.dumps({"programs": programs}))
    else:
        for entry in programs:
            typer.echo(f"{entry['program']}: {len(entry['facts'])} facts differ")
            for line in (*entry["meanings"], *(f"  {line}" for line in entry["facts"])):
                typer.echo(line)
            if entry["meanings"] and entry["unexplained"]:
                typer.echo(f"not explained: {', '.join(entry['unexplained'])}")
    if not programs:
        typer.echo("error: neither result has compile facts.\nHint: `nightjar-ci gate NIGHT` judges curves", err=True)
        raise typer.Exit(ExitCode.CANNOT_TELL)
    if any(entry["facts"] for entry in programs):
        raise typer.Exit(ExitCode.NO)


def _read_limits(tolerance: list[str]) -> dict[str, float]:
    limits: dict[str, float] = {}
    for setting in tolerance:
        glob, _, fraction = setting.rpartition("=")
        try:
            limits[glob] = float(fraction)
        except ValueError:
            limits[glob] = -1.0
        if not glob or not limits[glob] >= 0:
            raise InputError(f"--tolerance {setting}: expected GLOB=FRACTION, such as memory.*=0.02.")
    return limits
