"""`nightjar-ci confirm`: re-runs suspicious series of a night, paired with the environment of an earlier night."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nightjar_ci.commands.gate import Baselines, Policies, choose_policies


def command(
    night: Annotated[Path, typer.Argument(help="Night folder.", show_default=False)],
    matrix: Annotated[Path, typer.Argument(help="The matrix of its jobs.", show_default=False)],
    policies: Policies = None,
    baselines: Baselines = None,
) -> None:
    """Re-run what looks slower, paired with an earlier night.

    Then judges the night again: the last line of stdout is the path of report.html, and the exit code is that of
    `gate`. `nightly` does this itself; `run` and `gate` leave it to this command.

    Example: nightjar-ci confirm .nightjar/nights/2026-11-21T0300-1a2b ci/matrix/nightly-cpu.toml
    """
    from nightjar_ci.commands.nightly_pipeline import confirm_night
    from nightjar_ci.formats.project_files import find_baselines

    path, exit_code = confirm_night(
        night, matrix, policies_path=choose_policies(policies), baselines=find_baselines(baselines)
    )
    typer.echo(path)
    raise typer.Exit(exit_code)
