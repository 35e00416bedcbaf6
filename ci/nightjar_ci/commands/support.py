"""`nightjar-ci support`: the newest JAX with which each cell works."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    matrix: Annotated[str | None, typer.Option(help="Only nights of the matrix of this name.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the page into this Markdown file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of the page.")] = False,
) -> None:
    """Show with which JAX each cell works, and why not with a newer one.

    Every night counts that is in the store, also those of `--with jax==VERSION`, which tries one version:
    nightjar-ci nightly MATRIX --jobs 'haiku*' --with jax==0.9.2

    Example: nightjar-ci support --matrix nightly-ecosystem --out support.md
    """
    import dataclasses
    import json
    from datetime import UTC, datetime

    from nightjar_ci.errors import InputError
    from nightjar_ci.formats.documents import write_text
    from nightjar_ci.report.support import make_rows, render_support
    from nightjar_ci.settings import read_settings
    from nightjar_ci.store import open_store

    rows = make_rows(open_store(read_settings()).tried(matrix))
    if not rows:
        nights = "night"
        if matrix is not None:
            nights = f"night of the matrix {matrix!r}"
        raise InputError(
            f"the store has no {nights} whose jobs say which JAX they ran with.",
            "run one: nightjar-ci nightly MATRIX; or add stored ones: nightjar-ci store --import FOLDER",
        )
    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(row) for row in rows], indent=1))
        return
    page = render_support(rows, f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC")
    if out is None:
        typer.echo(page, nl=False)
        return
    write_text(out, page)
    typer.echo(out)
