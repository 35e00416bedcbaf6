"""The command `nightjar-ci images`: list, lock, build and test the image tree of a checkout."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from nightjar_ci.commands import images_bump, images_nights, images_registry
from nightjar_ci.commands.options import DryRun, Json, show_steps
from nightjar_ci.errors import ExitCode, InputError
from nightjar_ci.help import GroupedCommand, sectioned
from nightjar_ci.images.tree import DEFAULT_FLAVOR, Image, find_checkout, read_tree, render_bake, select_images

SECTIONS = {
    "Make": ("lock", "bump", "build", "test"),
    "Look": ("list", "choose", "snapshot"),
    "Publish": ("push",),
    "Use": ("pull", "verify"),
}
app = typer.Typer(
    cls=sectioned(SECTIONS), help="Build, test and publish the images.", no_args_is_help=True, rich_markup_mode=None
)
add_command = partial(app.command, cls=GroupedCommand)

Flavor = images_nights.Flavor
Target = images_nights.Target
Everything = images_nights.Everything

_COMMANDS: tuple[tuple[Callable[..., None], str], ...] = (
    (images_bump.bump, "--nightly --dry-run"),
    (images_nights.push, "jax --to localhost:5000/nightjar --tests tests.json"),
    (images_registry.choose, "--driver 550.54 --gpu h100"),
    (images_registry.verify, "localhost:5000/nightjar:jax-cpu"),
    (images_registry.pull, "localhost:5000/nightjar:jax-cpu-2026-11-21"),
)
for _command, _example in _COMMANDS:
    _name = _command.__name__
    add_command(_name, epilog=f"Example: nightjar-ci images {_name} {_example}")(_command)


@add_command("list", epilog="Example: nightjar-ci images list ghcr.io/me/nightjar:jax-cpu")
def list_images(
    source: Annotated[
        str | None,
        typer.Argument(
            help="A repository or nightly index, for its nightly images, or with :NAME or :NAME-YYYY-MM-DD for one "
            "(default: the tree).",
            show_default=False,
        ),
    ] = None,
    flavor: Flavor = DEFAULT_FLAVOR,
    as_json: Json = False,
) -> None:
    """Print the images of the tree, parents first, or nightly images.

    Of one nightly image: digest, platforms, layers and sizes (MB: 1,000,000 bytes) and package versions.
    """
    if source is not None and images_nights.names_image(source):
        images_nights.show_night(source, as_json)
        return
    if source is not None:
        images_nights.list_nights(source, as_json)
        return
    tree = read_tree(find_checkout(Path.cwd()), flavor)
    if as_json:
        typer.echo(json.dumps([asdict(image) for image in tree], indent=1))
        return
    for image in tree:
        typer.echo(f"{image.tag:<24} {'from ' + (image.parent or image.base):<34} {image.description}")


@add_command(epilog="Example: nightjar-ci images build jax --flavor cpu")
def build(
    target: Target = None,
    everything: Everything = False,
    flavor: Flavor = DEFAULT_FLAVOR,
    dry_run: DryRun = False,
) -> None:
    """Build images, and the root filesystem if it is missing; print tags, ids and sizes (MB: 1,000,000 bytes).

    With --all, the other images are built after the default ones, one by one; if one fails, the rest are still built.
    """
    from nightjar_ci.images.build import build_groups, group_images
    from nightjar_ci.tools import ToolError

    checkout = find_checkout(Path.cwd())
    groups = group_images(select_images(read_tree(checkout, flavor), target, everything=everything))
    if dry_run:
        for group in groups:
            command = render_bake([image.name for image in group], flavor=flavor)
            assignments = (f"{name}={shlex.quote(value)}" for name, value in command.variables.items() if value)
            typer.echo(" ".join((*assignments, shlex.join(command.argv))))
        return
    with show_steps() as on_step:
        report = build_groups(checkout, groups, flavor=flavor, environ=os.environ, on_step=on_step)
    for image in report.images:
        typer.echo(f"{image.tag:<24} {image.id[:19]} {image.size_bytes / 1e6:>8.1f} MB")
    typer.echo(f"built in {report.duration_s:.1f} s", err=True)
    if report.failures:
        raise ToolError("\n".join(report.failures), "build a single image with `nightjar-ci images build NAME`")


@add_command("test", epilog="Example: nightjar-ci images test models --report tests.json")
def run_tests(
    target: Target = None,
    everything: Everything = False,
    flavor: Flavor = DEFAULT_FLAVOR,
    report: Annotated[
        Path | None, typer.Option(help="File for the test results of each image, for `images push --tests`.")
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Test built images: each must pass its own tests and its parents'.

    With --all, all built images are tested; exits with 1 if one was not built.
    """
    from nightjar_ci.formats.documents import write_json
    from nightjar_ci.images.build import describe_image, inspect_image
    from nightjar_ci.images.tested import TestReport, summarize_junit
    from nightjar_ci.images.tree import check_engine
    from nightjar_ci.settings import read_settings
    from nightjar_ci.tools import ToolError

    lacking = [package for package in ("pytest", "docker.client") if not _is_installed(package)]
    if lacking and not dry_run:
        names = " and ".join(package.partition(".")[0] for package in lacking)
        raise InputError(f"the tests of images need {names}, which this Python lacks.", "nox -s tests --install-only")
    checkout = find_checkout(Path.cwd())
    images = select_images(read_tree(checkout, flavor), target, everything=everything)
    missing: list[Image] = []
    if not dry_run:
        check_engine()
        missing = [image for image in images if everything and inspect_image(image.tag) is None]
    images = tuple(image for image in images if image not in missing)
    argv = [sys.executable, "-m", "pytest", "tests/docker", "--flavor", flavor]
    if target or everything:
        argv += [part for image in images for part in ("--image", image.name)]
    if dry_run:
        typer.echo(shlex.join(argv))
        return
    for image in images:  # fails if an image is missing, where pytest would skip its tests
        describe_image(image)
    for image in missing:
        typer.echo(f"{image.tag}: not tested, because it was not built.", err=True)
    if not images:
        if report is not None:
            write_json(report, TestReport(images=()))
        raise typer.Exit(ExitCode.NO)
    import subprocess

    with tempfile.TemporaryDirectory(prefix="nightjar-tests-") as folder:
        junit = Path(folder, "junit.xml")
        status = subprocess.call([*argv, "--junit-xml", str(junit)], cwd=checkout)
        if status not in (ExitCode.OK, ExitCode.NO):
            raise ToolError(f"`{shlex.join(argv)}` ended with exit status {status}, expected 0 or 1.")
        if report is not None:
            # the tests rebuild images, so that their ids are read afterwards
            ids = {image.name: (image.tag, describe_image(image).id) for image in images}
            text, finished = junit.read_text(encoding="utf-8"), datetime.now(UTC)
            write_json(report, summarize_junit(text, ids, finished=finished, run=read_settings().github_run or ""))
    raise typer.Exit(ExitCode.NO if missing else status)


@add_command(epilog="Example: nightjar-ci images lock --upgrade")
def lock(
    upgrade: Annotated[bool, typer.Option("--upgrade", help="Lock the newest versions.")] = False,
    of: Annotated[
        str,
        typer.Option(
            help="Take the locks and pins of this nightly image, REPOSITORY:NAME-YYYY-MM-DD.", show_default=False
        ),
    ] = "",
    dry_run: DryRun = False,
) -> None:
    """Make the lock files of docker/locks from the packages' dependencies and print their paths.

    With --of, bring back a nightly image's locks instead and print the changed files: the checkout of the printed
    commit then builds the same layers.
    """
    from nightjar_ci.commands.images_bump import serve
    from nightjar_ci.images.lock.locks import drop_flavors, list_locks, make_locks, render_compile
    from nightjar_ci.tools import ToolError

    checkout = find_checkout(Path.cwd())
    if of:
        images_nights.restore(checkout, of, dry_run=dry_run)
        return
    locks = list_locks(checkout)
    if dry_run:
        for file in locks:
            typer.echo(shlex.join(render_compile(file, upgrade=upgrade)))
        return
    with show_steps() as on_step, serve(checkout, None, keep=not upgrade) as day:
        if day is not None:
            locks = drop_flavors(locks, day.lacking)
        failures = make_locks(
            checkout,
            locks,
            upgrade=upgrade,
            on_lock=lambda file: on_step(f"resolving {file.path}"),
            options=() if day is None else day.options,
            variables={} if day is None else day.variables,
        )
    if failures:
        unchanged = (f"{failure.lock.path} is unchanged: {failure.message}" for failure in failures)
        raise ToolError("\n".join(unchanged), "all other locks were made")
    for file in locks:
        typer.echo(file.path)


@add_command(epilog="Example: DEBIAN_SNAPSHOT=$(nightjar-ci images snapshot) nightjar-ci images build")
def snapshot(
    archive: Annotated[
        str, typer.Argument(help="A Debian snapshot archive (default: snapshot.debian.org).", show_default=False)
    ] = "",
) -> None:
    """Print the URL of an archive that has the OS packages of DEBIAN_DAY, for DEBIAN_SNAPSHOT.

    Exits with 1 and prints nothing on stdout if the archive does not answer or lacks the day. Images built without an
    archive get the current packages, and a later build may differ.
    """
    from nightjar_ci.images.lock.debian_day import ARCHIVE, find_archive
    from nightjar_ci.web.http import HttpError

    try:
        typer.echo(find_archive(find_checkout(Path.cwd()), archive or ARCHIVE, os.environ.get("DEBIAN_DAY", "")))
    except HttpError as error:
        typer.echo(f"no archive: images get the current OS packages and cannot be rebuilt later: {error}.", err=True)
        raise typer.Exit(ExitCode.NO) from None


def _is_installed(module: str) -> bool:
    """Whether a module can be imported: a folder of its package's name, as docker/ in the checkout, is not enough."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
