"""`nightjar-ci matrix`: print the jobs of a matrix."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer


def command(
    matrix: Annotated[Path, typer.Argument(help="The matrix, a TOML file.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print every field of every job.")] = False,
) -> None:
    """Print the jobs of a matrix.

    One line per job: id, kind, executor, environment, timeout in seconds and names of secrets. Nothing is run.

    Example: nightjar-ci matrix ci/matrix/nightly-cpu.toml
    """
    from nightjar_ci.commands.run import show_secrets
    from nightjar_ci.night.matrix import expand, read_matrix

    jobs = expand(read_matrix(matrix))
    if as_json:
        print(json.dumps([asdict(job) for job in jobs], indent=1, default=lambda part: part.model_dump(mode="json")))
        return
    width = max(len(job.id) for job in jobs)
    for job in jobs:
        print(
            f"{job.id:{width}}  {job.kind:7}  {job.executor}  {job.environment}  {job.timeout_s:g} s{show_secrets(job)}"
        )
