"""The command `nightjar-ci images push`, and nightly images as other commands name and show them."""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast, get_args

import typer

from nightjar_ci.commands.options import DryRun, Json, show_steps
from nightjar_ci.errors import ExitCode, InputError
from nightjar_ci.images.tested import CHANNELS
from nightjar_ci.images.tree import DEFAULT_FLAVOR, find_checkout, read_tree, select_images

if TYPE_CHECKING:
    from nightjar_ci.images.publish.nightly_index import NightlyImage
    from nightjar_ci.images.publish.publish import Publication
    from nightjar_ci.images.publish.push import PushReport, Source
    from nightjar_ci.settings import Settings
    from nightjar_ci.web.registry import Repository

To = Annotated[str, typer.Option("--to", help="Repository, such as ghcr.io/me/nightjar; `docker login` gives access.")]
Date = Annotated[
    str, typer.Option("--date", help="Date of the images, YYYY-MM-DD (default: today in UTC).", show_default=False)
]
Flavor = Annotated[str, typer.Option(help="Flavour of the images; each has a lock docker/locks/jax-FLAVOR.txt.")]
Platforms = Annotated[
    list[str] | None,
    typer.Option("--platform", help="Required platform (repeat for more; default: this machine's)."),
]
Channel = Annotated[
    str, typer.Option(help="nightly (its tests computed, and compiled for a GPU) or gpu-tested (a GPU computed, too).")
]
Target = Annotated[
    str | None, typer.Argument(help="An image of the tree (default: the default images).", show_default=False)
]
Everything = Annotated[bool, typer.Option("--all", help="All images of the tree, not only the default ones.")]
Where = Annotated[
    str,
    typer.Argument(help="REPOSITORY, or the file or URL of a nightly index (.json), and :NAME or :NAME-YYYY-MM-DD."),
]
From = Annotated[str, typer.Option("--from", help="The repository, if WHERE is a file or a URL.", show_default=False)]
# docker's grammar of repositories; capitals are accepted and made small
_REPOSITORY = re.compile(
    r"(?i:[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:\d+)?/)?(?i:[a-z0-9]+([._-]+[a-z0-9]+)*/)*(?i:[a-z0-9]+([._-]+[a-z0-9]+)*)"
)
LOCAL_BUILDER = "urn:nightjar:builder:local"
KEYLESS = "keyless"


def push(
    target: Target = None,
    everything: Everything = False,
    to: To = "",
    date: Date = "",
    flavor: Flavor = DEFAULT_FLAVOR,
    tests: Annotated[
        list[Path] | None, typer.Option("--tests", help="Report of `images test --report` (repeat for more).")
    ] = None,
    platform: Platforms = None,
    channel: Channel = CHANNELS[0],
    compression: Annotated[
        str, typer.Option(help="Compression of layers: zstd, or gzip (larger, for engines before Docker 23).")
    ] = "zstd",
    sign: Annotated[
        str,
        typer.Option(
            help="Sign what is published with cosign: a key (a file, or a URI such as awskms://...), or `keyless` "
            "(default: unsigned).",
            show_default=False,
        ),
    ] = "",
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Push built images with SBOM, provenance and test report, and publish the complete ones.

    NAME-DATE-OS-ARCHITECTURE is pushed at once. NAME-DATE, which never changes, and the rolling NAME follow once every
    --platform is pushed and passed its tests. Signed are the night, its images, and their provenance and SBOM;
    COSIGN_PASSWORD is the password of a key file. `keyless`: Sigstore certifies who runs this in its public log.
    """
    from nightjar_ci.formats.documents import read_document
    from nightjar_ci.images.build import inspect_image
    from nightjar_ci.images.publish.layer_blob import Compression
    from nightjar_ci.images.publish.push import push_images
    from nightjar_ci.images.publish.sign import sign_image
    from nightjar_ci.images.publish.tags import check_date, check_platform, dated_tag, image_name, night_date
    from nightjar_ci.images.tested import TestReport
    from nightjar_ci.images.tree import find_architecture
    from nightjar_ci.settings import read_settings

    check_channel(channel)
    checkout, settings = find_checkout(Path.cwd()), read_settings()
    repository, day = open_repository(to), check_date(date or night_date(datetime.now(UTC)))
    if compression not in get_args(Compression):
        raise InputError(f"compression: {compression!r} is unknown: expected {' or '.join(get_args(Compression))}.")
    images = select_images(read_tree(checkout, flavor), target, everything=everything)
    tested = {image.tag: image for path in tests or [] for image in read_document(path, TestReport).images}
    platforms = [check_platform(name) for name in platform or []]
    if dry_run:
        for image in images:
            target = f"{repository.name}:{dated_tag(image_name(image.tag), day)}-PLATFORM"
            typer.echo(f"{image.tag} ({_describe_state(image.tag)}) -> {target}")
        return
    missing = [image.tag for image in images if everything and inspect_image(image.tag) is None]
    tags = [image.tag for image in images if image.tag not in missing]
    with show_steps() as on_step:
        report = push_images(
            tags,
            repository,
            day,
            tested=tested,
            source=_describe_source(checkout, settings),
            layer_cache=settings.state_dir / "layers",
            on_step=on_step,
            compression=cast(Compression, compression),
        )
    names = {pushed.name: pushed.platform for pushed in report.images}
    if missing:
        names |= dict.fromkeys(map(image_name, missing), f"linux/{find_architecture()}")
    publications = [_publish(to, name, day, platforms or [local], channel) for name, local in names.items()]
    for publication in publications:
        if sign and not publication.reasons:
            with show_steps() as on_step:
                key = "" if sign == KEYLESS else sign
                sign_image(find_night(f"{to}:{publication.tag}"), key, os.environ, on_step)
    _print_push(repository.name, report, publications, as_json=as_json)
    unreported = [tag for tag in tags if tests and tag not in tested]
    for tag in unreported:
        typer.echo(
            f"{tag}: not in the test report ({', '.join(map(str, tests or []))}), hence not published.", err=True
        )
    if missing or unreported or any(not tested[tag].ok for tag in tags if tag in tested):
        raise typer.Exit(ExitCode.NO)


def _describe_source(checkout: Path, settings: Settings) -> Source:
    from nightjar_ci.images.publish.pins import read_checkout_pins
    from nightjar_ci.images.publish.push import Source

    pins = read_checkout_pins(checkout)
    locks = {path: text for path, text in pins.items() if re.fullmatch(r"docker/locks/.+\.txt", path)}
    builder = settings.github_workflow or LOCAL_BUILDER
    return Source(locks=locks, pins=pins, builder=builder, invocation=settings.github_run)


def show_night(where: str, as_json: bool) -> None:
    """Prints a nightly image: digest, platforms, layers and sizes (MB: 1,000,000 bytes), package versions."""
    night = find_night(where)
    if as_json:
        typer.echo(night.model_dump_json(indent=1))
        return
    typer.echo(f"{night.name} {night.date}\n{night.reference}")
    if night.revision:
        typer.echo(f"commit {night.revision}")
    if night.jax_day:
        typer.echo(f"JAX of {night.jax_day}")
    for name, commit in night.commits.items():
        typer.echo(f"{name} commit {commit}")
    for platform, image in night.platforms.items():
        typer.echo(f"\n{platform}  {image.digest}  {image.size_bytes / 1e6:.1f} MB")
        if image.ran:
            typer.echo(f"  in its tests: {', '.join(image.ran)}")
        for layer in image.layers:
            typer.echo(f"  {layer.digest}  {layer.size_bytes / 1e6:>8.1f} MB")
    typer.echo("")
    for name, version in night.packages.items():
        typer.echo(f"{name}=={version}")


def list_nights(source: str, as_json: bool) -> None:
    """Prints the nightly images of a repository or of a nightly index."""
    from nightjar_ci.images.publish.index_store import open_index
    from nightjar_ci.images.publish.nightly_index import render_index

    index = open_index(source)
    if not index.images:
        typer.echo(f"{source} has no nightly image yet: `nightjar-ci images push` makes the first one.", err=True)
    if as_json:
        typer.echo(render_index(index), nl=False)
        return
    for night in index.images:
        sizes = ", ".join(f"{name} {image.size_bytes / 1e6:.1f} MB" for name, image in night.platforms.items())
        jax = f"jax {night.packages['jax']}" if "jax" in night.packages else ""
        typer.echo(f"{night.name:<16} {night.date}  {night.reference.rpartition('@')[2][:19]}  {sizes:<28} {jax}")


def restore(checkout: Path, where: str, *, dry_run: bool) -> None:
    """Brings back the locks and pins of a nightly image; prints the changed files and its commit."""
    from nightjar_ci.images.publish.pins import find_changes, find_pins, restore_pins

    night = find_night(where)
    pins = find_pins(night)
    for path in find_changes(checkout, pins) if dry_run else restore_pins(checkout, pins):
        typer.echo(path)
    typer.echo(f"commit {night.revision or 'unknown'}", err=True)


def names_image(source: str) -> bool:
    """Whether an image of a repository or index is named, and not all of them.

    >>> [names_image(text) for text in ("localhost:5000/nightjar", "localhost:5000/nightjar:jax-cpu", "n.json:jax-cpu")]
    [False, True, True]
    """
    _, colon, name = source.rpartition(":")
    return bool(colon) and "/" not in name


def find_night(where: str) -> NightlyImage:
    """The nightly image that the command line names."""
    from nightjar_ci.images.publish.index_store import find_image, open_index
    from nightjar_ci.images.publish.publish import find_rolling_date
    from nightjar_ci.images.publish.tags import dated_tag

    source, colon, name = where.rpartition(":")
    if not colon or "/" in name:
        raise InputError(f"{where!r} has no image name.", "use REPOSITORY:NAME or REPOSITORY:NAME-YYYY-MM-DD")
    if not source.endswith(".json") and (day := find_rolling_date(open_repository(source), name)):
        name = dated_tag(name, day)  # which somebody may have moved back
    return find_image(open_index(source), name)


def find_repository(where: str, from_option: str) -> str:
    """The repository that the user trusts; an index in a file or at a URL cannot choose it."""
    source = where.rpartition(":")[0]
    if source.endswith(".json"):
        if not from_option:
            raise InputError(
                f"--from is missing: {source} cannot choose the repository.",
                "add --from HOST/PATH, such as --from ghcr.io/me/nightjar",
            )
        return open_repository(from_option).name
    if from_option and open_repository(from_option).name != open_repository(source).name:
        raise InputError(f"--from: {from_option!r} is not {source!r}.", "leave it out")
    return open_repository(source).name


def _publish(to: str, name: str, day: str, platforms: list[str], channel: str = CHANNELS[0]) -> Publication:
    from nightjar_ci.images.publish.index_store import refresh_index
    from nightjar_ci.images.publish.publish import publish_image

    publication = publish_image(open_repository(to), name, day, platforms, channel=channel)
    if not publication.reasons:
        refresh_index(open_repository(to))
    return publication


def _print_push(repository: str, report: PushReport, publications: list[Publication], *, as_json: bool) -> None:
    if as_json:
        document = {**asdict(report), "nights": [asdict(publication) for publication in publications]}
        typer.echo(json.dumps(document, indent=1))
        return
    for pushed in report.images:
        typer.echo(f"{repository}:{pushed.tag}  {pushed.digest[:19]}  {pushed.size_bytes / 1e6:.1f} MB")
    typer.echo(f"sent {report.sent_bytes / 1e6:.1f} MB", err=True)
    for publication in publications:
        tag, rolling = publication.tag, publication.rolling
        if not publication.reasons:
            typer.echo(f"{tag} is published as {publication.digest}; {rolling} refers to {publication.rolling_date}.")
            continue
        state = f"stays at {publication.rolling_date}" if publication.rolling_date else "does not exist yet"
        reasons = "; ".join(publication.reasons)
        typer.echo(f"{tag} is not published: {reasons}. The rolling tag {rolling} {state}.")


def _describe_state(tag: str) -> str:
    from nightjar_ci.images.build import inspect_image
    from nightjar_ci.tools import ToolError

    try:
        if inspect_image(tag):
            return "built"
        return "not built"
    except ToolError:
        return "no engine answers"


def open_repository(name: str) -> Repository:
    """A repository of the command line."""
    from nightjar_ci.web.registry import Repository

    if not name:
        raise InputError("no repository is named: expected HOST/PATH.", "such as --to ghcr.io/me/nightjar")
    if not _REPOSITORY.fullmatch(name):
        reason = "it has a tag or digest" if re.search(r"[:@][^/]*$", name) else "it is not HOST/PATH"
        raise InputError(f"{name!r} is not a valid repository: {reason}.", "write it like ghcr.io/me/nightjar")
    return Repository(name)


def check_channel(channel: str) -> None:
    if channel not in CHANNELS:
        raise InputError(f"--channel: unknown channel {channel!r}; expected {' or '.join(CHANNELS)}.")
