"""`nightjar-ci adapt`: turn another program's output into a result."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    files: Annotated[list[Path], typer.Argument(help="Output files of the program.", show_default=False)],
    adapter: Annotated[Path, typer.Option("--with", help="The adapter, a TOML file.", show_default=False)],
) -> None:
    """Turn the logs of another program into a result.

    Reads TensorBoard event files, JSON lines, CSV, any log by a regular expression, and the JSON of pytest-benchmark
    and asv; prints nightjar.run/1.

    Example: nightjar-ci adapt train.log --with adapter.toml > result.json
    """
    from nightjar_ci.adapters import read_adapter
    from nightjar_ci.adapters.convert import About, adapt
    from nightjar_ci.adapters.machine import read_machine
    from nightjar_ci.environments.git_tree import read_git
    from nightjar_ci.formats.night_folder import now

    about = About(
        job="adapted",
        workload="adapted",
        seed=0,
        started_at=now(),
        duration_s=0.0,
        environment=read_machine("unknown", read_git(Path.cwd())),
    )
    print(adapt(files, read_adapter(adapter), about).model_dump_json(by_alias=True, indent=1))
