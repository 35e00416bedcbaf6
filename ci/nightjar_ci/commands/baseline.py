"""`nightjar-ci baseline`: trains every cell with many seeds and writes the baselines of later nights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nightjar_ci.commands.options import Baselines, DryRun
from nightjar_ci.commands.options import Policies as PoliciesFile

if TYPE_CHECKING:
    from nightjar_ci.formats.job import Job
    from nightjar_ci.formats.policy import Policies
    from nightjar_ci.night.matrix import Matrix


def command(
    matrix: Annotated[Path | None, typer.Argument(help="Matrix file.", show_default=False)] = None,
    jobs: Annotated[str | None, typer.Option(help="Glob of job ids; default: all training jobs.")] = None,
    seeds: Annotated[str, typer.Option(help="Seeds to train: 0:10 (without 10), or 0,1,2.")] = "0:10",
    from_night: Annotated[
        Path | None, typer.Option("--from", help="Use the results of this night folder instead of running a matrix.")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Continue this night folder: run only the jobs that did not complete.")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Jobs to run at the same time; none of them is timed.")] = 1,
    baselines: Baselines = None,
    policies: PoliciesFile = None,
    add: Annotated[
        bool, typer.Option("--add", help="With --from: keep the curves, and add this machine's to them.")
    ] = False,
    facts_only: Annotated[bool, typer.Option("--facts-only", help="Write compile facts and no curves.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Train every cell with many seeds and write its baselines.

    A cell that is judged by another cell's curve (`same_as`) needs facts only, and runs one seed. Prints the written
    paths. Exit code 3: a job did not complete, or a curve is infinite or NaN; the baseline of its cell is unchanged.
    `--resume NIGHT` runs only the jobs again that did not complete. `--from NIGHT --add` makes later nights on this
    processor and jaxlib as sharp as on the baseline's own; it refuses curves that the gate would not pass.

    Example: nightjar-ci baseline ci/matrix/nightly-cpu.toml --seeds 0:10
    """
    from nightjar_ci.errors import InputError
    from nightjar_ci.formats.policy import read_policies
    from nightjar_ci.formats.project_files import find_baselines, find_policies

    if (matrix is None) == (from_night is None):
        raise InputError("baseline needs a matrix or --from NIGHT, and not both.")
    if add and (from_night is None or facts_only):
        raise InputError("--add needs --from NIGHT, and curves.", "run the matrix first: `nightjar-ci run MATRIX`")
    if resume is not None and matrix is None:
        raise InputError("--resume needs the matrix of the night.", "--from makes baselines from completed jobs")
    numbers, baselines = read_policies(find_policies(policies)), find_baselines(baselines)
    if matrix is not None:
        from nightjar_ci.gate.baseline_runs import plan_runs
        from nightjar_ci.night.matrix import read_matrix

        whole = read_matrix(matrix)
        planned = plan_runs(whole, numbers, jobs, seeds, facts_only=facts_only)
        if dry_run:
            _print_plan(whole, planned, resume)
            return
        from_night = _train(whole, planned, resume, workers)
    assert from_night is not None
    _write(from_night, jobs, baselines, numbers, add=add, facts_only=facts_only, dry_run=dry_run)


def _print_plan(matrix: Matrix, planned: Sequence[Job], resume: Path | None) -> None:
    from nightjar_ci.night.run import left_to_run

    for job in planned if resume is None else left_to_run(matrix, resume, planned):
        typer.echo(f"{job.id}  {' '.join(job.command)}")


def _train(matrix: Matrix, planned: Sequence[Job], resume: Path | None, workers: int) -> Path:
    from nightjar_ci.formats.night_folder import new_night_id
    from nightjar_ci.night.run import run_night
    from nightjar_ci.settings import read_settings

    night = resume or read_settings().baseline_nights_dir / new_night_id()
    run_night(matrix, night, jobs=planned, resume=resume is not None, failed_again=True, workers=workers)
    return night


def _write(
    night: Path, jobs: str | None, baselines: Path, numbers: Policies, *, add: bool, facts_only: bool, dry_run: bool
) -> None:
    """Writes the baselines of a night's cells; a cell with a fault keeps its own."""
    from nightjar_ci.baselines.baseline import add_elsewhere, read_convergence, write_baselines, write_convergence
    from nightjar_ci.errors import InputError, NightjarError
    from nightjar_ci.gate.baseline_runs import find_fault, find_replica_fault, judge_addition, needs_curves, read_cells

    cells, failed, hint = read_cells(night, jobs), [], "a baseline needs finite curves that differ from seed to seed"
    if add and all(read_convergence(baselines, cell.cell) is None for cell in cells):
        raise InputError(f"{baselines}: no baseline of the cells of {night} to add to.", "make one without --add")
    if not cells:
        raise InputError(f"{night}: no training job matches {jobs or '*'!r}.", "nightjar-ci run --dry-run lists them")
    for cell in cells:
        if cell.failed:
            failed.append(f"{cell.cell}: {', '.join(cell.failed)} did not complete")
            hint = f"see the logs in {night}/jobs; --resume {night} runs only those again"
            continue
        only = facts_only or not needs_curves(cell, numbers)
        names = {curve.name for record in cell.records for curve in record.curves}
        judged = [name for name in names if numbers.for_curve(cell.cell, name) is not None]
        committed = read_convergence(baselines, cell.cell) if add else None
        if add and committed is None:
            continue  # judged by another cell's curve, or not at all
        if add:
            hint = "a change that is wanted needs a new baseline: ten seeds, without --add"
        fault = None if only else find_fault(cell, judged) or find_replica_fault(cell, numbers)
        if committed is not None:
            fault = fault or judge_addition(cell, committed, numbers)
        if fault is not None:
            failed.append(f"{cell.cell}: {fault}")
            continue
        if dry_run:
            typer.echo(f"{baselines / cell.cell}: {len(cell.records)} runs{', facts only' if only else ''}")
            continue
        if committed is not None:
            typer.echo(write_convergence(baselines, add_elsewhere(committed, cell.records)))
            continue
        paths = write_baselines(baselines, cell.cell, cell.command, cell.records, cell.replicas, facts_only=only)
        for path in paths:
            typer.echo(path)
    if failed:
        raise NightjarError(f"{'; '.join(failed)}: its baseline was not written.", hint)
