"""`nightjar-ci images`: lists, locks, builds and tests the image tree of a checkout."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from nightjar_ci.commands import images_layers, images_nights
from nightjar_ci.commands.images_steps import show_steps
from nightjar_ci.images.tree import DEFAULT_FLAVOR, find_checkout, read_tree, render_bake, select_images

app = typer.Typer(help="Build, test and publish the images.", no_args_is_help=True, rich_markup_mode=None)

Flavor = Annotated[str, typer.Option(help="The same tree with another lock: docker/locks/jax-FLAVOR.txt.")]
NO = 1
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the commands and run none.")]
Target = Annotated[
    str | None, typer.Argument(help="An image of the tree; those of the default where absent.", show_default=False)
]
Everything = images_nights.Everything


app.command("diff", epilog="Example: nightjar-ci images diff engine:nightjar/jax:cpu oci:layout:jax")(
    images_layers.diff
)
app.command("plan", epilog="Example: nightjar-ci images plan --flavor cuda12 --nights 30")(images_layers.plan)
app.command("push", epilog="Example: nightjar-ci images push jax --to localhost:5000/nightjar --tests tests.json")(
    images_nights.push
)
app.command("publish", epilog="Example: nightjar-ci images publish jax-cpu --to localhost:5000/nightjar")(
    images_nights.publish
)
app.command("prune", epilog="Example: nightjar-ci images prune --to localhost:5000/nightjar --keep-days 90 --dry-run")(
    images_nights.prune
)
app.command("support", epilog="Example: nightjar-ci images support nightly.json > support.md")(images_nights.support)
app.command("show", epilog="Example: nightjar-ci images show localhost:5000/nightjar:jax-cpu")(images_nights.show)
app.command("sign", epilog="Example: nightjar-ci images sign localhost:5000/nightjar:jax-cpu --key cosign.key")(
    images_nights.sign
)
app.command("pull", epilog="Example: nightjar-ci images pull localhost:5000/nightjar:jax-cpu-2026-11-21")(
    images_nights.pull
)


@app.command("list", epilog="Example: nightjar-ci images list ghcr.io/me/nightjar")
def list_images(
    source: Annotated[
        str | None,
        typer.Argument(
            help="A repository or nightly index, for its nights; the tree where absent.", show_default=False
        ),
    ] = None,
    flavor: Flavor = DEFAULT_FLAVOR,
    as_json: Json = False,
) -> None:
    """Print the images of the tree, parents first; or the nights that a repository or nightly index has."""
    if source is not None:
        images_nights.list_nights(source, as_json)
        return
    tree = read_tree(find_checkout(Path.cwd()), flavor)
    if as_json:
        typer.echo(json.dumps([asdict(image) for image in tree], indent=1))
        return
    for image in tree:
        typer.echo(f"{image.tag:<24} {'from ' + (image.parent or image.base):<34} {image.description}")


@app.command(epilog="Example: nightjar-ci images build jax --flavor cpu")
def build(
    target: Target = None,
    everything: Everything = False,
    flavor: Flavor = DEFAULT_FLAVOR,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Build images, and the ground floor where it is missing; print their tags, ids and sizes (MB: 1,000,000 bytes).

    With --all, what is not of the default is built after it, one by one: one that fails leaves the others. Ends with 3
    where an image was not built.
    """
    from nightjar_ci.images.build import build_groups, group_images
    from nightjar_ci.images.process import ToolError

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
    if as_json:
        typer.echo(json.dumps(asdict(report), indent=1))
    else:
        for image in report.images:
            typer.echo(f"{image.tag:<24} {image.id[:19]} {image.size_bytes / 1e6:>8.1f} MB")
        typer.echo(f"built in {report.duration_s:.1f} s", err=True)
    if report.failures:
        raise ToolError("\n".join(report.failures), "`nightjar-ci images build NAME` builds one of them")


@app.command("test", epilog="Example: nightjar-ci images test models --report tests.json")
def run_tests(
    target: Target = None,
    everything: Everything = False,
    flavor: Flavor = DEFAULT_FLAVOR,
    report: Annotated[
        Path | None, typer.Option(help="Write the verdict on each image there, for `images push --tests`.")
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Test built images: each passes its own tests and those of the images that it is built on.

    With --all, those that were built are tested; ends with 1 where one was not.
    """
    from nightjar_ci.formats.documents import write_json
    from nightjar_ci.images.build import describe_image, inspect_image
    from nightjar_ci.images.process import ToolError, check_engine
    from nightjar_ci.images.tested import TESTS_SCHEMA, TestReport, summarize_junit

    checkout = find_checkout(Path.cwd())
    images = select_images(read_tree(checkout, flavor), target, everything=everything)
    if not dry_run:
        check_engine()
    missing = [image for image in images if everything and not dry_run and inspect_image(image.tag) is None]
    images = tuple(image for image in images if image not in missing)
    named = [part for image in images if target or everything for part in ("--image", image.name)]
    argv = [sys.executable, "-m", "pytest", "tests/docker", "--flavor", flavor, *named]
    if dry_run:
        typer.echo(shlex.join(argv))
        return
    for image in images:  # an image that is not there is an error here, where pytest would skip its tests
        describe_image(image)
    for image in missing:
        typer.echo(f"{image.tag}: not tested: it was not built.", err=True)
    if not images:
        if report is not None:
            write_json(report, TestReport(schema=TESTS_SCHEMA, images=()))
        raise typer.Exit(NO)
    import subprocess

    with tempfile.TemporaryDirectory(prefix="nightjar-tests-") as folder:
        junit = Path(folder, "junit.xml")
        status = subprocess.call([*argv, "--junit-xml", str(junit)], cwd=checkout)
        if status not in (0, NO):
            raise ToolError(f"`{shlex.join(argv)}` ended with exit status {status}, expected 0 or 1.")
        if report is not None:
            ids = {
                image.name: (image.tag, describe_image(image).id) for image in images
            }  # the tests brought them up to date
            write_json(report, summarize_junit(junit.read_text(encoding="utf-8"), ids))
    raise typer.Exit(NO if missing else status)


@app.command(epilog="Example: nightjar-ci images lock --upgrade")
def lock(
    upgrade: Annotated[bool, typer.Option("--upgrade", help="Take the newest versions, not the locked ones.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Make the lock files of docker/locks from the packages' dependencies; print their paths."""
    from nightjar_ci.images.lock.locks import list_locks, make_locks, render_compile

    checkout = find_checkout(Path.cwd())
    locks = list_locks(checkout)
    if dry_run:
        for one in locks:
            typer.echo(shlex.join(render_compile(one, upgrade=upgrade)))
        return
    with show_steps() as on_step:
        make_locks(checkout, locks, upgrade=upgrade, on_lock=lambda one: on_step(f"resolving {one.path}"))
    for one in locks:
        typer.echo(one.path)


@app.command(epilog="Example: nightjar-ci images bump jax==0.12.0 --dry-run")
def bump(
    pins: Annotated[
        list[str] | None, typer.Argument(help="What moves, such as jax==0.12.0; all to its newest where absent.")
    ] = None,
    nightly: Annotated[
        bool,
        typer.Option(
            "--nightly",
            help="Take the newest commits of docker/repositories.toml; packages named without a version: of those.",
        ),
    ] = False,
    pre: Annotated[bool, typer.Option("--pre", help="Take pre-releases, too.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would change and write nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Move the locks to newer versions and print what changes, with changelogs; nothing changes unless all resolves.

    Ends with 2 where the versions do not resolve together, and says which stands in the way.
    """
    from nightjar_ci.images.lock.bump import bump_locks, write_bump
    from nightjar_ci.images.lock.commits import find_commits

    checkout = find_checkout(Path.cwd())
    named = [pin for pin in pins or [] if nightly and re.fullmatch(r"[\w.-]+", pin)]
    moved = [pin for pin in pins or [] if pin not in named]
    with show_steps() as on_step:
        if nightly:
            on_step("asking the repositories for their newest commits")
        commits = find_commits(checkout, named) if nightly else ()
        found = bump_locks(checkout, moved, pre=pre, on_step=on_step, commits=commits, upgrade=not pins)
    if not dry_run:
        write_bump(checkout, found)
    if as_json:
        answer = {"changes": [asdict(change) for change in found.changes], "notes": list(found.notes)}
        typer.echo(json.dumps({**answer, "files": sorted(found.files), "written": not dry_run}, indent=1))
        return
    for change in found.changes:
        versions = f"{', '.join(change.before) or 'new'} -> {', '.join(change.after) or 'gone'}"
        typer.echo(f"{change.package:<28} {versions:<32} {change.changelog or ''}".rstrip())
    for note in found.notes:
        typer.echo(note, err=True)
    wrote = "would change" if dry_run else "changed"
    typer.echo(f"{len(found.changes)} packages, {len(found.files)} files of docker/ {wrote}", err=True)


@app.command(epilog="Example: DEBIAN_SNAPSHOT=$(nightjar-ci images snapshot) nightjar-ci images build")
def snapshot(
    archive: Annotated[
        str, typer.Argument(help="An archive of Debian's past; snapshot.debian.org where absent.", show_default=False)
    ] = "",
) -> None:
    """Print the address of an archive that has the OS packages of DEBIAN_DAY, for DEBIAN_SNAPSHOT.

    Ends with 1, printing nothing on stdout, where it does not answer or lacks the day: a night without it has the
    packages of now, and no later build is sure to be the same.
    """
    from nightjar_ci.images.lock.debian_day import ARCHIVE, find_archive
    from nightjar_ci.web.http import HttpError

    try:
        typer.echo(find_archive(find_checkout(Path.cwd()), archive or ARCHIVE, os.environ.get("DEBIAN_DAY", "")))
    except HttpError as error:
        typer.echo(f"OS packages are those of now, and nothing can build this night again later: {error}.", err=True)
        raise typer.Exit(NO) from None
