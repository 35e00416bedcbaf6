"""`nightjar-ci calls`: which functions of JAX and its libraries the jobs of a matrix execute."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nightjar_ci.commands.options import Environment, Jobs, Matrix
from nightjar_ci.errors import ExitCode, InputError

if TYPE_CHECKING:
    from nightjar_ci.formats.calls import Calls

MOST_MISSING = 6


def command(
    matrix: Matrix,
    jobs: Jobs = None,
    packages: Annotated[
        str,
        typer.Option(
            help="Packages whose functions are recorded, separated by commas; those that others build on come first."
        ),
    ] = "jax,optax,orbax,flax,grain",
    used: Annotated[
        Path | None, typer.Option(help="JSON list of the names that people use, with their number of files.")
    ] = None,
    environment: Environment = None,
) -> None:
    """Record which library functions the jobs of a matrix execute.

    Runs one job of each cell with a recorder in its Python processes, which takes longer: nothing is timed or judged.
    The recording is kept in $NIGHTJAR_STATE_DIR/calls. Later nights of the matrix show it in their report, and name
    suspects: functions that run in the jobs that are red, and in no other. Exit code 3: a job did not complete.

    Example: nightjar-ci calls ci/matrix/nightly-cpu.toml --jobs 'vit_tiny*'
    """
    from nightjar_ci.calls.record import choose_jobs, record_matrix
    from nightjar_ci.calls.recording import read_used
    from nightjar_ci.environments.prepare import Environments
    from nightjar_ci.formats.documents import write_json
    from nightjar_ci.night.matrix import expand, move_job, read_matrix, select_jobs
    from nightjar_ci.settings import keep_out_of_git, read_settings

    read, names = read_matrix(matrix), read_used(used) if used is not None else {}
    selected = select_jobs(expand(read), pattern=jobs)
    chosen = choose_jobs([move_job(job, environment=environment) for job in selected])
    recorded = tuple(filter(None, packages.split(",")))
    if not all(name.isidentifier() for name in recorded) or not recorded:
        raise InputError(f"--packages: {packages!r}: expected top-level packages such as jax,flax.")
    settings = read_settings()
    keep_out_of_git(settings)
    folder = settings.calls_dir / read.name
    calls = record_matrix(read.name, chosen, folder, recorded, names, Environments(settings))
    path = settings.find_calls(read.name)
    write_json(path, calls)
    typer.echo(render(calls))
    typer.echo(f"kept in {path}", err=True)
    for cell, outcome in calls.cells.items():
        if outcome.state != "completed":
            typer.echo(f"{outcome.job}: {outcome.state}; its log is in {folder / cell}", err=True)
    if any(cell.state != "completed" for cell in calls.cells.values()):
        raise typer.Exit(ExitCode.FAILED)


def render(calls: Calls) -> str:
    """The recording as text: by library what people use of it and the jobs execute, or the number of names."""
    from nightjar_ci.formats.calls import find_shares

    lines = [f"{len(calls.cells)} cells executed {len(calls.functions):,} functions, {len(calls.names):,} public names"]
    for share in find_shares(calls):
        fraction = share.executed_weight / max(1, share.weight)
        lines.append(
            f"{share.library:18} {share.executed:3} of {share.used:3} used names, {share.own:3} by the jobs' own code; "
            f"by weight {fraction:4.0%}"
        )
        if share.missing and share.library != "all":
            lines.append(f"{'':18} missing: {', '.join(share.missing[:MOST_MISSING])}")
    return "\n".join(lines)
