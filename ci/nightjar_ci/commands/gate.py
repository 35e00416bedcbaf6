"""`nightjar-ci gate`: judges a night that is there; with `--rerun` after pairs of what looks slower."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nightjar_ci.commands.options import Baselines, Night, Policies


def note_policies(path: Path) -> None:
    """Says on stderr that the built-in policies judged, once they have."""
    from nightjar_ci.formats.project_files import FOLDERS, OWN_POLICIES

    if path == OWN_POLICIES:
        names = " or ".join(str(folder / path.name) for folder in FOLDERS)
        typer.echo(f"policies: the built-in ones, since there is no {names}", err=True)


def command(
    night: Night,
    policies: Policies = None,
    baselines: Baselines = None,
    rerun: Annotated[
        Path | None,
        typer.Option(metavar="MATRIX", help="First re-run what looks slower, paired with an earlier night."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print nightjar.verdicts/1.")] = False,
) -> None:
    """Judge a night: convergence, facts and performance.

    Writes verdicts.json and ledger.json into the night folder and prints the verdicts, worst first. Exit code 0: all is
    well; 1: a series regressed; 2: a file is wrong; 3: a job did not complete; 4: a judge cannot tell, a series that
    recent nights had is absent, or jobs have not run.

    With --rerun the report is written, too, and the last line of stdout is its path. `nightly` re-runs by itself.

    Example: nightjar-ci gate .nightjar/nights/2026-11-21T0300-1a2b
    """
    from nightjar_ci.formats.night_results import read_night_results
    from nightjar_ci.formats.policy import read_policies
    from nightjar_ci.formats.project_files import find_baselines, find_policies
    from nightjar_ci.gate.advice import render_confirm
    from nightjar_ci.gate.gate import find_exit_code, gate_night
    from nightjar_ci.settings import read_settings
    from nightjar_ci.store import open_store

    policies, baselines = find_policies(policies), find_baselines(baselines)
    if rerun is not None:
        from nightjar_ci.commands.nightly_pipeline import confirm_night

        path, exit_code = confirm_night(night, rerun, policies_path=policies, baselines=baselines)
        typer.echo(path)
        raise typer.Exit(exit_code)
    command, settings = render_confirm(night, policies, baselines), read_settings()
    numbers, store = read_policies(policies), open_store(settings)
    results = read_night_results(night)
    verdicts = gate_night(results, numbers, baselines, store, command, settings.nights_dir)
    note_policies(policies)
    if as_json:
        typer.echo(verdicts.model_dump_json(by_alias=True, indent=1))
    else:
        from nightjar_ci.report.terminal import print_verdicts
        from nightjar_ci.untrusted.console import open_console

        print_verdicts(verdicts, open_console())
    raise typer.Exit(find_exit_code(results, verdicts))
