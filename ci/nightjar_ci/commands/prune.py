"""`nightjar-ci prune`: gives back the room of what the state folder has kept for too long."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Annotated

import typer


def command(
    keep_days: Annotated[int, typer.Option(min=1, max=36_500, help="What was used within so many days stays.")] = 60,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be deleted and delete nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Delete nights, bisections and environments that are not used.

    They lie in $NIGHTJAR_STATE_DIR. What the store remembers of a night stays, its logs, results and report go. An
    environment is made again when a job asks for it.

    Example: nightjar-ci prune --keep-days 30 --dry-run
    """
    from nightjar_ci.commands.images_steps import show_steps
    from nightjar_ci.judges.finding import count
    from nightjar_ci.night.prune import delete, find_unused
    from nightjar_ci.settings import read_settings

    settings, now = read_settings(), datetime.now(UTC)
    with show_steps() as on_step:
        unused = find_unused(settings, keep_days, now, lambda path: on_step(f"measuring {path}"))
        gone = []
        for one in unused:
            if not dry_run:
                on_step(f"deleting {one.path}")
            gone += [one] if dry_run or delete(one) else []
    if as_json:
        rows = [
            {"path": str(one.path), "last_used": one.last_used.isoformat(), "bytes": one.size_bytes} for one in gone
        ]
        typer.echo(json.dumps({"deleted": not dry_run, "folders": rows}, indent=1))
        return
    for one in gone:
        where = one.path.relative_to(settings.state_dir)
        typer.echo(f"{where}: {one.size_bytes / 1e6:.1f} MB, last used {(now - one.last_used).days} days ago")
    said = "would be given back" if dry_run else "given back"
    typer.echo(f"{count(len(gone), 'folder')}, {sum(one.size_bytes for one in gone) / 1e6:.1f} MB {said}")
