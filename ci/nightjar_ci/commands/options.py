"""Options and the progress display that several commands have, each written once."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

Night = Annotated[Path, typer.Argument(help="Night folder.", show_default=False)]
Matrix = Annotated[Path, typer.Argument(help="The matrix, a TOML file.", show_default=False)]
Jobs = Annotated[str | None, typer.Option(help="Only the jobs whose id matches this glob.")]
Executor = Annotated[str | None, typer.Option(help="Run all jobs by this executor: local, docker, slurm, kubernetes.")]
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


@contextmanager
def show_steps() -> Iterator[Callable[[str], None]]:
    """Shows steps: one changing line on a terminal, otherwise a line per step."""
    from rich.markup import escape

    from nightjar_ci.untrusted.console import open_console

    console = open_console(stderr=True)
    if not console.is_terminal:
        yield lambda step: print(step[:150], file=sys.stderr, flush=True)
        return
    with console.status("starting") as status:
        yield lambda step: status.update(escape(step[: console.width - 4]))
