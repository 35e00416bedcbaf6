"""`nightjar-ci track`: copies the measures of a night to an experiment tracker."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    night: Annotated[Path, typer.Argument(help="Night folder.", show_default=False)],
    mlflow: Annotated[
        str | None, typer.Option(metavar="EXPERIMENT", help="Write to MLflow, at $MLFLOW_TRACKING_URI.")
    ] = None,
    wandb: Annotated[
        str | None, typer.Option(metavar="PROJECT", help="Write to Weights & Biases, with its $WANDB_ variables.")
    ] = None,
    jobs: Annotated[str, typer.Option(help="Write only the jobs whose id matches this glob.")] = "*",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the runs and write nothing.")] = False,
) -> None:
    """Copy the measures of a night to MLflow or Weights & Biases.

    Each job that has a result becomes a run with its curves, samples, compile facts and numbers of tests, its
    configuration, and the versions that it ran with. A second call writes no run twice, except offline runs of W&B.
    Needs the tracker's library: pip install 'nightjar-ci[mlflow]' or 'nightjar-ci[wandb]'. Exit code 2: bad usage;
    3: a server refused or was not reached.

    Example: nightjar-ci track .nightjar/nights/2026-11-21T0300-1a2b --mlflow nightly
    """
    from nightjar_ci.errors import InputError
    from nightjar_ci.formats.night_results import read_night_results
    from nightjar_ci.settings import keep_out_of_git, read_settings
    from nightjar_ci.trackers.mlflow import write_mlflow
    from nightjar_ci.trackers.tracked_run import read_runs
    from nightjar_ci.trackers.wandb import write_wandb

    if not mlflow and not wandb:
        raise InputError("no tracker is named.", "--mlflow EXPERIMENT or --wandb PROJECT")
    runs = read_runs(read_night_results(night), jobs)
    if not runs:
        raise InputError(f"{night}: no job that matches {jobs!r} has a result.")
    if dry_run:
        for run in runs:
            values = len(run.scalars) + sum(map(len, (*run.curves.values(), *run.samples.values())))
            typer.echo(f"{run.job}: {values:,} values: {', '.join([*run.curves, *run.samples, *run.scalars])}")
        return
    if mlflow:
        for line in write_mlflow(runs, mlflow):
            typer.echo(line)
    if wandb:
        settings = read_settings()
        keep_out_of_git(settings)
        for line in write_wandb(runs, wandb, settings.state_dir):
            typer.echo(line)
