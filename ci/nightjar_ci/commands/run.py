"""`nightjar-ci run`: run every job of a matrix and keep the results."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from nightjar_ci.commands.options import DryRun, Environment, Executor, Jobs, Matrix, Out, Requirements
from nightjar_ci.errors import ExitCode
from nightjar_ci.formats.job import Job
from nightjar_ci.settings import read_settings


def command(
    matrix: Matrix,
    out: Out = None,
    jobs: Jobs = None,
    seeds: Annotated[str | None, typer.Option(help="Run only these seeds: 0,2 or 0:3 (0, 1, 2).")] = None,
    executor: Executor = None,
    environment: Environment = None,
    requirements: Requirements = None,
    one_process: Annotated[
        bool, typer.Option("--one-process", help="Run each job as one process, without its `resources`: to try it.")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the latest unfinished night (or --out's), with its options.")
    ] = False,
    workers: Annotated[
        int, typer.Option(min=1, help="Jobs to run at the same time on this machine; use 1 for timings.")
    ] = 1,
    dry_run: DryRun = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print night.json instead of its folder.")] = False,
) -> None:
    """Run every job of a matrix and keep the results.

    Prints the night folder. Exit code 1: a test fails; 3: a job did not complete, or another process runs the night.

    Example: nightjar-ci run ci/matrix/nightly-cpu.toml --jobs 'vit_tiny*' --seeds 0
    """
    from nightjar_ci.formats.night_folder import Options, new_night_id
    from nightjar_ci.night.matrix import choose_jobs, read_matrix
    from nightjar_ci.night.run import find_unfinished, resume_options, run_night

    read, settings = read_matrix(matrix), read_settings()
    options = Options(
        jobs=jobs,
        seeds=seeds,
        executor=executor,
        environment=environment,
        requirements=requirements,
        one_process=one_process,
    )
    if out is None and resume:
        out = find_unfinished(settings.nights_dir, read)
    elif out is None:
        out = settings.nights_dir / new_night_id()
    if resume:
        options = resume_options(out, options)
    chosen = choose_jobs(read, options)
    if dry_run:
        print(_render_dry_run(chosen, as_json))
        return
    from nightjar_ci.environments.prepare import Environments
    from nightjar_ci.store import open_store

    with Environments(settings) as environments:
        night = run_night(
            read,
            out,
            jobs=chosen,
            store=open_store(settings),
            environments=environments,
            resume=resume,
            workers=workers,
            options=options,
        )
    if as_json:
        print(night.model_dump_json(by_alias=True, indent=1))
    else:
        print(out)
    if not all(outcome.completed for outcome in night.jobs):
        raise typer.Exit(ExitCode.FAILED)
    from nightjar_ci.untrusted.border import REMOVED

    said = (line for one in night.jobs if one.kind == "test" for line in (one.message or "").splitlines())
    if any(REMOVED not in line for line in said):
        raise typer.Exit(ExitCode.NO)


def _render_dry_run(jobs: Sequence[Job], as_json: bool) -> str:
    from nightjar_ci.environments.current import find_current

    environments = {job.environment: job.environment for job in jobs}
    if "current" in environments:
        environments["current"] = f"current is {find_current()}"
    if as_json:
        plan = [{**asdict(job), "environment": environments[job.environment]} for job in jobs]
        return json.dumps(plan, indent=1, default=lambda part: part.model_dump(mode="json"))
    lines = [*environments.values()]
    for job in jobs:
        command = shlex.join(job.with_source(Path("SOURCE")).rendered(Path("OUT"))[0])
        secrets = f"  (secrets: {', '.join(job.secrets)})" if job.secrets else ""
        lines.append(f"{job.id}: {command}{secrets}")
    return "\n".join(lines)
