"""`nightjar-ci prune`: free the disk space of unused nights and environments."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from nightjar_ci.commands.options import DryRun, show_steps


def command(
    keep_days: Annotated[int, typer.Option(min=1, max=36_500, help="Keep what was used within this many days.")] = 60,
    dry_run: DryRun = False,
) -> None:
    """Delete nights, bisections and environments that are not used.

    They are in $NIGHTJAR_STATE_DIR. The measures and verdicts of a night are kept in the store; its logs, results and
    report are deleted. An environment is made again when a job needs it.

    Example: nightjar-ci prune --keep-days 30 --dry-run
    """
    from nightjar_ci.errors import InputError
    from nightjar_ci.judges.finding import count
    from nightjar_ci.night.prune import delete, find_unused
    from nightjar_ci.settings import read_settings
    from nightjar_ci.store import open_store
    from nightjar_ci.store.folder import import_missing

    settings, now = read_settings(), datetime.now(UTC)
    with show_steps() as on_step:
        unused = find_unused(settings, keep_days, now, lambda path: on_step(f"measuring {path}"))
        deleted, store = [], None
        for folder in unused:
            if dry_run:
                deleted.append(folder)
                continue
            on_step(f"deleting {folder.path}")
            if folder.path.parent == settings.nights_dir and (folder.path / "night.json").is_file():
                store = store or open_store(settings)
                try:
                    import_missing(store, {folder.path.name: folder.path})
                except InputError as error:
                    typer.echo(f"warning: {folder.path} is kept: {error.message}", err=True)
                    continue
            if delete(folder):
                deleted.append(folder)
    for folder in deleted:
        name = folder.path.relative_to(settings.state_dir)
        typer.echo(f"{name}: {folder.size_bytes / 1e6:.1f} MB, last used {(now - folder.last_used).days} days ago")
    verb = "would be freed" if dry_run else "freed"
    typer.echo(f"{count(len(deleted), 'folder')}, {sum(folder.size_bytes for folder in deleted) / 1e6:.1f} MB {verb}")
