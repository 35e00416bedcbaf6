"""Options that several commands have, each written once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Night = Annotated[Path, typer.Argument(help="Night folder.", show_default=False)]
Matrix = Annotated[Path, typer.Argument(help="The matrix, a TOML file.", show_default=False)]
Jobs = Annotated[str | None, typer.Option(help="Only the jobs whose id matches this glob.")]
Executor = Annotated[str | None, typer.Option(help="Run all jobs by this executor: local, docker, slurm.")]
Environment = Annotated[str | None, typer.Option(help="Run all jobs in this environment.")]
Requirements = Annotated[
    str | None, typer.Option("--with", help="Run all jobs with other versions, such as jax==0.10.1.")
]
Out = Annotated[Path | None, typer.Option(help="Night folder; default: a new one in $NIGHTJAR_STATE_DIR/nights.")]
Variables = Annotated[
    list[str] | None,
    typer.Option(help="NAME=VALUE of an environment variable that its tests need; repeat it for more."),
]
Policies = Annotated[
    Path | None,
    typer.Option(help="TOML file of policies; default: ci/nightjar/policies.toml or ci/policies.toml, else built-in."),
]
Baselines = Annotated[
    Path | None, typer.Option(help="Folder of committed baselines; default: ci/nightjar/baselines or ci/baselines.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be done; run and write nothing.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
