"""`nightjar-ci prune`: free the disk space of unused nights, bisections and environments."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Annotated

import typer


def command(
    keep_days: Annotated[int, typer.Option(min=1, max=36_500, help="Keep what was used within so many days.")] = 60,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be deleted and delete nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Delete nights, bisections and environments that are not used.

    They are in $NIGHTJAR_STATE_DIR. The store keeps the measures and verdicts of a night; its logs, results and report
    are deleted. An environment is made again when a job needs it.

    Example: nightjar-ci prune --keep-days 30 --dry-run
    """
    from nightjar_ci.commands.images_steps import show_steps
    from nightjar_ci.judges.finding import count
    from nightjar_ci.night.prune import delete, find_unused
    from nightjar_ci.settings import read_settings

    settings, now = read_settings(), datetime.now(UTC)
    with show_steps() as on_step:
        unused = find_unused(settings, keep_days, now, lambda path: on_step(f"measuring {path}"))
        deleted = []
        for folder in unused:
            if dry_run:
                deleted.append(folder)
                continue
            on_step(f"deleting {folder.path}")
            if delete(folder):
                deleted.append(folder)
    if as_json:
        rows = [
            {"path": str(folder.path), "last_used": folder.last_used.isoformat(), "bytes": folder.size_bytes}
            for folder in deleted
        ]
        typer.echo(json.dumps({"deleted": not dry_run, "folders": rows}, indent=1))
        return
    for folder in deleted:
        name = folder.path.relative_to(settings.state_dir)
        typer.echo(f"{name}: {folder.size_bytes / 1e6:.1f} MB, last used {(now - folder.last_used).days} days ago")
    verb = "would be freed" if dry_run else "freed"
    typer.echo(f"{count(len(deleted), 'folder')}, {sum(folder.size_bytes for folder in deleted) / 1e6:.1f} MB {verb}")
