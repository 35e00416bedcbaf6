"""`nightjar-ci render`: print the batch script or manifest of a job, and run nothing."""

from __future__ import annotations

import json
import shlex
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Annotated

import typer

from nightjar_ci.commands.options import Matrix
from nightjar_ci.formats.job import Job


class Scheduler(StrEnum):
    """Who runs the job."""

    SLURM = "slurm"
    KUBERNETES = "kubernetes"


def command(
    scheduler: Annotated[Scheduler, typer.Argument(help="Who runs the job.")],
    matrix: Matrix,
    job: Annotated[str, typer.Argument(metavar="JOB", help="Id of the job, or a glob that matches one.")],
    environment: Annotated[
        str | None, typer.Option(help="Run it in this environment, such as image:REFERENCE.")
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(help="The job's folder that its nodes share; default: out, or on Kubernetes /nights/JOB."),
    ] = None,
) -> None:
    """Print the batch script or manifest of a job without running it.

    For Slurm a script for sbatch, with the options of NIGHTJAR_SLURM_OPTIONS; for Kubernetes a JobSet, as JSON that
    kubectl reads, with NIGHTJAR_KUBERNETES_OPTIONS.

    Example: nightjar-ci render kubernetes ci/matrix/multinode-gpu.toml '*dp16*' | kubectl apply -f -
    """
    selected = _find(matrix, job, environment)
    if scheduler == Scheduler.SLURM:
        folder = Path(out or "out").absolute()
        print(_render_slurm(selected, folder), end="")
        if not folder.is_dir():
            hint = "Slurm opens its log there, and fails a job in silence if it cannot"
            typer.echo(f"before sbatch: mkdir -p {shlex.quote(str(folder))}. {hint}.", err=True)
        return
    from nightjar_ci.executors.kubectl import read_site
    from nightjar_ci.settings import read_settings

    site = read_site(read_settings().kubernetes_options)
    manifest = site.render(selected, None if out is None else PurePosixPath(out))
    print(json.dumps(manifest, indent=2))


def _render_slurm(selected: Job, folder: Path) -> str:
    from nightjar_ci.executors.slurm.script import OUT, BatchSpec, Cell, render_batch
    from nightjar_ci.settings import read_settings

    kind, _, image = selected.environment.partition(":")
    command, variables = selected.rendered(folder)
    if kind == "image":
        command, variables = selected.rendered(PurePosixPath(OUT))
    spec = BatchSpec(
        resources=selected.resources,
        timeout_s=selected.timeout_s,
        image=image if kind == "image" else None,
        work=None if kind == "image" else str(Path.cwd()),
        options=read_settings().slurm_options,
        passed=tuple(name for name in selected.inherited if not name.endswith("*")),
    )
    cell = Cell(folder=str(folder), command=command, variables=variables)
    return render_batch(f"nightjar-{selected.id}", spec, [cell])


def _find(matrix: Path, pattern: str, environment: str | None) -> Job:
    """The job; where only signed images may be pulled, its image is one, by its digest."""
    from nightjar_ci.errors import InputError
    from nightjar_ci.executors.slurm.script import is_path
    from nightjar_ci.images.publish.verify import find_signer, pin_signed
    from nightjar_ci.night.matrix import expand, move_job, read_matrix, select_jobs
    from nightjar_ci.suites.command import with_report

    jobs = select_jobs(expand(read_matrix(matrix)), pattern=pattern)
    if len(jobs) > 1:
        raise InputError(
            f"{pattern!r} matches {len(jobs)} jobs, expected one: {', '.join(job.id for job in jobs[:5])}."
        )
    job = jobs[0]
    if job.kind == "test":
        job = with_report(job)  # as it is submitted
    job, signer = move_job(job, executor="slurm", environment=environment), find_signer()
    kind, _, image = job.environment.partition(":")
    if kind != "image" or signer is None or is_path(image):
        return job
    return move_job(job, executor="slurm", environment=f"image:{pin_signed(image, signer)}")
