"""`nightjar-ci prune`: free the disk space of unused nights and environments, or of old images in a registry."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from nightjar_ci.commands.options import DryRun, show_steps

STATE_DAYS, IMAGE_DAYS = 60, 180


def command(
    images: Annotated[
        str | None, typer.Option(help="Instead, delete nightly images of this repository, such as ghcr.io/me/nightjar.")
    ] = None,
    keep_days: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=36_500,
            help=f"Keep what was used within this many days; default: {STATE_DAYS}, of images {IMAGE_DAYS}.",
        ),
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Delete nights, bisections and environments that are not used.

    They are in $NIGHTJAR_STATE_DIR. The store keeps the measures and verdicts of a night; its logs, results and report
    are deleted. An environment is made again when a job needs it. Of nightly images the newest of each name and the
    first of each month stay; `docker login` gives access.

    Example: nightjar-ci prune --keep-days 30 --dry-run
    """
    from nightjar_ci.judges.finding import count
    from nightjar_ci.night.prune import delete, find_unused
    from nightjar_ci.settings import read_settings

    if images is not None:  # an empty variable names no repository, and shall not delete nights
        from nightjar_ci.commands.images_nights import prune

        prune(images, keep_days or IMAGE_DAYS, dry_run=dry_run)
        return
    settings, now = read_settings(), datetime.now(UTC)
    with show_steps() as on_step:
        unused = find_unused(settings, keep_days or STATE_DAYS, now, lambda path: on_step(f"measuring {path}"))
        deleted = []
        for folder in unused:
            if dry_run:
                deleted.append(folder)
                continue
            on_step(f"deleting {folder.path}")
            if delete(folder):
                deleted.append(folder)
    for folder in deleted:
        name = folder.path.relative_to(settings.state_dir)
        typer.echo(f"{name}: {folder.size_bytes / 1e6:.1f} MB, last used {(now - folder.last_used).days} days ago")
    verb = "would be freed" if dry_run else "freed"
    typer.echo(f"{count(len(deleted), 'folder')}, {sum(folder.size_bytes for folder in deleted) / 1e6:.1f} MB {verb}")
