"""The command `nightjar-ci images bump`: newer releases, commits, and JAX's nightly wheels."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nightjar_ci.commands.options import DryRun, Json, show_steps
from nightjar_ci.errors import InputError
from nightjar_ci.images.tree import find_checkout

if TYPE_CHECKING:
    from nightjar_ci.images.lock.bump import Bump
    from nightjar_ci.images.lock.commits import Commit
    from nightjar_ci.images.lock.jax_day import ServedDay
    from nightjar_ci.jax_nightly.days import Choice


def bump(
    pins: Annotated[
        list[str] | None, typer.Argument(help="Packages to move, such as jax==0.12.0 (default: all, to the newest).")
    ] = None,
    nightly: Annotated[
        bool,
        typer.Option(
            "--nightly",
            help="Lock the newest complete day of JAX's nightly wheels, and the newest commits of "
            "docker/repositories.toml; with packages without a version, only of those.",
        ),
    ] = False,
    date: Annotated[
        str, typer.Option("--date", help="With --nightly: the day of JAX, YYYY-MM-DD.", show_default=False)
    ] = "",
    images: Annotated[
        list[str] | None,
        typer.Option(
            "--for", help="With --nightly: images that the day must have wheels for, such as 'cpu-*' (default: all)."
        ),
    ] = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Update the locks and print the changes with changelogs; no file changes unless all locks resolve.

    NIGHTJAR_NIGHTLY_INDEX is the index of JAX's nightly wheels; a day without every wheel is not taken.
    """
    from nightjar_ci.images.lock.bump import bump_locks, write_bump
    from nightjar_ci.images.lock.commits import find_commits
    from nightjar_ci.jax_nightly.days import NAMES

    checkout = find_checkout(Path.cwd())
    packages = [pin for pin in pins or [] if nightly and re.fullmatch(r"[\w.-]+", pin)]
    versions = [pin for pin in pins or [] if pin not in packages]
    takes_day = nightly and (not packages or any(name in NAMES for name in packages))
    if (date or images) and not takes_day:
        raise InputError("--date and --for belong to a nightly of JAX.", "add --nightly")
    commits: tuple[Commit, ...] = ()
    choice: Choice | None = None
    with show_steps() as on_step:
        if takes_day:
            on_step("reading the index of JAX's nightly wheels")
            choice = choose(checkout, date, images or ())
        names = [name for name in packages if name not in NAMES]
        if nightly and (names or not packages):
            on_step("finding the newest commits")
            commits = find_commits(checkout, names)
        moves_jax = any(re.match(r"jax(lib)?\b", version) for version in versions)
        with serve(checkout, choice, images or (), keep=bool(pins) and not moves_jax) as day:
            result = bump_locks(checkout, versions, on_step=on_step, commits=commits, upgrade=not pins, day=day)
    if not dry_run:
        write_bump(checkout, result)
    _print(result, choice, written=not dry_run, as_json=as_json)


def choose(checkout: Path, date: str, images: Sequence[str]) -> Choice:
    """The day of a date, or the newest that is complete for these images."""
    from nightjar_ci.images.lock.jax_day import list_targets
    from nightjar_ci.images.publish.tags import check_date
    from nightjar_ci.jax_nightly.days import choose_day, read_days
    from nightjar_ci.settings import read_settings

    days = read_days(read_settings().nightly_index)
    return choose_day(days, list_targets(checkout, images), check_date(date) if date else None)


@contextmanager
def serve(
    checkout: Path, choice: Choice | None, images: Sequence[str] = (), *, keep: bool
) -> Iterator[ServedDay | None]:
    """The index of the chosen day; without one and with `keep`, that of the day in the locks; else None."""
    from nightjar_ci.environments.run_uv import find_index
    from nightjar_ci.images.lock.jax_day import (
        ServedDay,
        describe_day,
        find_lacking,
        list_targets,
        read_nightly_day,
        render_nightly_day,
    )
    from nightjar_ci.jax_nightly.day_index import serve_day
    from nightjar_ci.settings import read_settings

    document = read_nightly_day(checkout) if keep and choice is None else None
    if choice is None and document is None:
        yield None
        return
    if choice is None and document is not None:
        choice = choose(checkout, document.date, document.images)
    assert choice is not None
    document = document or describe_day(choice.day, images)
    default_index = read_settings().index_url or find_index()
    with serve_day(choice.day, default_index) as (options, variables):
        yield ServedDay(
            day=choice.day,
            options=options,
            variables=variables,
            python=list_targets(checkout, ())[0].python,
            document=render_nightly_day(document),
            lacking=find_lacking(checkout, choice.day, document.images),
        )


def _print(result: Bump, choice: Choice | None, *, written: bool, as_json: bool) -> None:
    refused: Sequence[str] = () if choice is None else choice.refused
    if as_json:
        document = {"changes": [asdict(change) for change in result.changes], "notes": [*result.notes, *refused]}
        date = None if choice is None else choice.day.date
        typer.echo(
            json.dumps({**document, "files": sorted(result.files), "written": written, "jax_day": date}, indent=1)
        )
        return
    for change in result.changes:
        step = f"{', '.join(change.before) or 'new'} -> {', '.join(change.after) or 'gone'}"
        typer.echo(f"{change.package:<28} {step:<32} {change.changelog or ''}".rstrip())
    for note in (*result.notes, *refused):
        typer.echo(note, err=True)
    if choice is not None:
        typer.echo(f"JAX of {choice.day.date}", err=True)
    verb = "changed" if written else "would change"
    typer.echo(f"{len(result.changes)} packages and {len(result.files)} files of docker/ {verb}", err=True)
