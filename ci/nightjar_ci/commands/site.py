"""`nightjar-ci site`: the status of the nights as a folder of static pages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    out: Annotated[Path, typer.Option(help="Folder to write.")] = Path("site"),
    nights: Annotated[
        Path | None,
        typer.Option(
            help="Folder of night folders, added to the store where it lacks them; default: $NIGHTJAR_STATE_DIR/nights."
        ),
    ] = None,
    images: Annotated[
        str, typer.Option(help="A repository of nightly images, or its index (.json), for the support matrix.")
    ] = "",
) -> None:
    """Write the status page: what is red, since when, badges.

    Writes index.html, status.json, badges/ and the reports of the latest 30 nights; the last line of
    stdout is the path of index.html. All links are relative, and no server is needed. The exit code is 0 even if the
    page shows regressions.

    Example: nightjar-ci site --out site
    """
    from nightjar_ci.errors import InputError, NightjarError
    from nightjar_ci.settings import read_settings
    from nightjar_ci.site.write import Sources, write_site

    if nights is not None and not nights.is_dir():
        raise InputError(f"--nights {nights}: no such folder.", "name a folder of night folders")
    settings = read_settings()
    sources = Sources(
        nights=nights or settings.nights_dir,
        bisections=settings.bisections_dir,
        images=images,
    )
    try:
        path, _ = write_site(out, settings, sources)
    except OSError as error:
        hint = "check free space and that you own the folder, or name another with --out"
        raise NightjarError(f"{out}: the page cannot be written: {error}.", hint) from None
    typer.echo(path)
