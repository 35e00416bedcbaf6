"""`nightjar-ci nightly`: run, compare with a reference, gate, report."""

from __future__ import annotations

from typing import Annotated

import typer

from nightjar_ci.commands.gate import note_policies
from nightjar_ci.commands.options import Baselines, Environment, Executor, Jobs, Matrix, Out, Policies, Requirements
from nightjar_ci.commands.report import Summary, append_summary


def command(
    matrix: Matrix,
    reference: Annotated[
        str | None, typer.Option(help="Environment to compare step times with, such as uv:jax==0.10.1.")
    ] = None,
    out: Out = None,
    policies: Policies = None,
    baselines: Baselines = None,
    jobs: Jobs = None,
    executor: Executor = None,
    environment: Environment = None,
    requirements: Requirements = None,
    summary: Summary = None,
) -> None:
    """Run, gate and report a matrix: the whole nightly.

    What looks slower than in earlier nights is run again, paired with an earlier night's environment. The last line
    of stdout is the path of report.html; exit codes are those of `gate`.

    Example: nightjar-ci nightly ci/matrix/nightly-cpu.toml --reference uv:jax==0.10.1
    """
    from nightjar_ci.commands.nightly_pipeline import run_nightly
    from nightjar_ci.formats.night_folder import Options
    from nightjar_ci.formats.project_files import find_baselines, find_policies

    policies_path = find_policies(policies)
    path, exit_code = run_nightly(
        matrix,
        reference=reference,
        folder=out,
        policies_path=policies_path,
        baselines=find_baselines(baselines),
        options=Options(jobs=jobs, executor=executor, environment=environment, requirements=requirements),
    )
    note_policies(policies_path)
    append_summary(summary, path.parent)
    typer.echo(path)
    raise typer.Exit(exit_code)
