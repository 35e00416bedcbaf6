"""The commands `nightjar-ci images choose|mirror|restore|rollback|sign|verify|vulnerabilities`: published images."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nightjar_ci.commands.images_nights import (
    DryRun,
    From,
    Json,
    To,
    Where,
    find_night,
    find_repository,
    open_repository,
    read_day,
)
from nightjar_ci.commands.images_signatures import By, Issuer, Key, sign_night
from nightjar_ci.commands.images_steps import show_steps
from nightjar_ci.errors import ExitCode, InputError, NightjarError
from nightjar_ci.images.tree import find_checkout

if TYPE_CHECKING:
    from nightjar_ci.images.vulnerabilities.components import Component
    from nightjar_ci.images.vulnerabilities.find import EarlierNight


def choose(
    driver: Annotated[
        str, typer.Option(help="Version of the NVIDIA driver (default: this machine's).", show_default=False)
    ] = "",
    gpu: Annotated[
        str,
        typer.Option(
            help="A GPU, such as h100, or its compute capability, such as 9.0 (default: this machine's).",
            show_default=False,
        ),
    ] = "",
    as_json: Json = False,
) -> None:
    """Print the flavours of the images that run with a driver and a GPU, the best one first, and why others do not."""
    from nightjar_ci.images.choose import judge_flavors, read_capability

    if bool(driver) != bool(gpu):
        raise InputError("--driver and --gpu go together.", "add the missing one, or leave out both")
    if driver and not re.fullmatch(r"\d+(\.\d+)*", driver):
        raise InputError(f"--driver: {driver!r} is not a valid version.", "write it like 550.54.15")
    version, capability = (driver, read_capability(gpu)) if driver else _read_machine()
    fits = judge_flavors(version, capability)
    if as_json:
        typer.echo(json.dumps([asdict(fit) for fit in fits], indent=1))
        return
    for fit in fits:
        typer.echo(
            f"{fit.flavor:<8} {'no: ' + fit.reason if fit.reason else 'yes, such as nightjar/jax:' + fit.flavor}"
        )


def mirror(
    source: Annotated[str, typer.Argument(help="Repository to copy from, such as ghcr.io/them/nightjar.")],
    target: Annotated[str, typer.Argument(help="Repository to copy to, such as registry.local/nightjar.")],
    names: Annotated[
        list[str] | None, typer.Option("--name", help="Names of images (repeat; default: all).", show_default=False)
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Copy nightly images, with their attached documents, to another repository; print the copied tags."""
    from nightjar_ci.images.publish.copy_nights import copy_nights, select_nights
    from nightjar_ci.images.publish.index_store import load_index
    from nightjar_ci.images.publish.tags import dated_tag

    here, there = open_repository(source), open_repository(target)
    if dry_run:
        for night in select_nights(load_index(here).images, names or []):
            typer.echo(f"{here.name}:{dated_tag(night.name, night.date)} -> {there.name}")
        return
    with show_steps() as on_step:
        copied = copy_nights(here, there, names or [], on_step)
    for tag in copied:
        typer.echo(f"{there.name}:{tag}")


def rollback(
    name: Annotated[str, typer.Argument(help="Name of a nightly image, such as jax-cuda12.")],
    date: Annotated[str, typer.Argument(help="Date of a published image, YYYY-MM-DD.")],
    to: To = "",
    dry_run: DryRun = False,
) -> None:
    """Move a rolling tag to the published image of a date; the next publication moves it forward again."""
    from nightjar_ci.images.publish.copy_nights import roll_back
    from nightjar_ci.images.publish.publish import find_rolling_date

    repository, day = open_repository(to), read_day(date)
    before = find_rolling_date(repository, name) or "no image"
    if dry_run:
        typer.echo(f"{name} would refer to {day}, not {before}")
        return
    digest = roll_back(repository, name, day)
    typer.echo(f"{name} refers to {day}, {digest}; before: {before}")


def verify(where: Where, key: Key = "", signer: By = "", issuer: Issuer = "", as_json: Json = False) -> None:
    """Check a nightly image: every manifest and blob, its test report, SBOM and provenance.

    With --key or --signer also its signature, and that its provenance is signed.

    Exits with 1 and names the faults if there are any.
    """
    from nightjar_ci.images.publish.signed import find_signer
    from nightjar_ci.images.publish.verify import find_faults

    night, accepted = find_night(where), find_signer(key, signer, issuer)
    faults = find_faults(night, accepted)
    if as_json:
        typer.echo(json.dumps({"reference": night.reference, "faults": faults}, indent=1))
    elif faults:
        for fault in faults:
            typer.echo(fault)
    else:
        signed = f", signed by {accepted.name}" if accepted else ""
        typer.echo(f"{night.reference} is complete, tested and described{signed}")
    if faults:
        raise typer.Exit(ExitCode.NO)


def vulnerabilities(
    where: Annotated[
        str, typer.Argument(help="SBOM (CycloneDX, a .json file), or REPOSITORY:NAME or REPOSITORY:NAME-YYYY-MM-DD.")
    ],
    database: Annotated[Path, typer.Option(help="OSV database on disk: all.zip, or a folder of .zip and .json files.")],
    vex: Annotated[
        Path | None, typer.Option(help="OpenVEX document: what does not apply, and why.", show_default=False)
    ] = None,
    debian: Annotated[str, typer.Option(help="Release of Debian in the image.")] = "13",
    as_json: Json = False,
) -> None:
    """List the known vulnerabilities of an image's packages, and since which night it has them; nothing is fetched.

    Exits with 1 if one applies.
    """
    from nightjar_ci.images.vulnerabilities.find import find_vulnerabilities
    from nightjar_ci.images.vulnerabilities.osv import read_entries
    from nightjar_ci.images.vulnerabilities.vex import Exceptions, read_exceptions

    exceptions = Exceptions()
    if vex is not None:
        exceptions = read_exceptions(vex)
    components, nights = _find_components(where)
    packages = {(component.ecosystem, component.source) for component in components}
    faults = find_vulnerabilities(components, read_entries(database, packages), exceptions, nights, debian)
    if as_json:
        typer.echo(json.dumps([asdict(fault) for fault in faults], indent=1))
    else:
        typer.echo("".join(f"{fault.line}\n" for fault in faults), nl=False)
    open_faults = sum(fault.reason is None for fault in faults)
    excused = len(faults) - open_faults
    typer.echo(
        f"{len(components)} packages, {open_faults} known vulnerabilities, {excused} that do not apply", err=True
    )
    if open_faults:
        raise typer.Exit(ExitCode.NO)


def _find_components(where: str) -> tuple[list[Component], list[EarlierNight]]:
    """The packages of an SBOM or of a nightly image, and what the nights before it had."""
    from nightjar_ci.images.publish.artifacts import SBOM_TYPE, find_documents
    from nightjar_ci.images.publish.index_store import load_index
    from nightjar_ci.images.vulnerabilities.components import read_components
    from nightjar_ci.images.vulnerabilities.find import EarlierNight
    from nightjar_ci.web.registry import Repository

    if where.endswith(".json"):
        try:
            return read_components(Path(where).read_bytes(), where), []
        except OSError as error:
            raise InputError(f"{where}: cannot be read: {error.strerror}.") from None
    night = find_night(where)
    repository = Repository(night.reference.rpartition("@")[0])
    components: set[Component] = set()
    for platform, image in night.platforms.items():
        documents = find_documents(repository, image.digest, SBOM_TYPE)
        if not documents:
            raise NightjarError(f"{night.reference} has no SBOM of {platform}.", "push it again")
        components.update(read_components(documents[-1], f"the SBOM of {night.reference}"))
    earlier = [
        other for other in load_index(repository).images if other.name == night.name and other.date <= night.date
    ]
    nights = [
        EarlierNight(date=other.date, packages={"PyPI": other.packages, "Debian": other.system_packages})
        for other in sorted(earlier, key=lambda other: other.date, reverse=True)
    ]
    return sorted(components), nights


def sign(
    where: Where,
    key: Annotated[
        str,
        typer.Option(
            "--key",
            help="A private key for cosign: a file, or a URI such as awskms://... (default: none, keyless).",
            show_default=False,
        ),
    ] = "",
    repository: From = "",
    dry_run: DryRun = False,
) -> None:
    """Sign a published nightly image and attest its provenance and SBOM with cosign; print the signed digests.

    COSIGN_PASSWORD is the password of a key file. Without a key, Sigstore certifies who runs this, such as a workflow,
    and writes it to a public log.
    """
    from nightjar_ci.images.publish.nightly_index import check_reference

    night = find_night(where)
    check_reference(night, find_repository(where, repository))
    if dry_run:
        for digest in (*(image.digest for image in night.platforms.values()), night.reference.rpartition("@")[2]):
            typer.echo(f"{digest} would be signed")
        return
    for digest in sign_night(night, key):
        typer.echo(digest)


def restore(where: Where, dry_run: DryRun = False) -> None:
    """Bring back the locks and pins of a nightly image into this checkout, to build it again; print the changed files.

    Check out the printed commit first; the build then gives the same layers.
    """
    from nightjar_ci.images.publish.pins import find_changes, find_pins, restore_pins

    checkout = find_checkout(Path.cwd())
    night = find_night(where)
    pins = find_pins(night)
    if dry_run:
        changed = find_changes(checkout, pins)
    else:
        changed = restore_pins(checkout, pins)
    for path in changed:
        typer.echo(path)
    typer.echo(f"commit {night.revision or 'unknown'}", err=True)


def _read_machine() -> tuple[str | None, int | None]:
    from nightjar_ci.images.process import ToolError, run_captured

    query = ["nvidia-smi", "--query-gpu=driver_version,compute_cap", "--format=csv,noheader"]
    try:
        rows = [line.split(", ") for line in run_captured(query).splitlines() if line.strip()]
    except ToolError:
        return None, None
    if not rows:
        return None, None
    try:
        return rows[0][0], min(round(float(row[1]) * 10) for row in rows)
    except (ValueError, IndexError):  # `[N/A]`, of a driver that does not answer for its GPU
        return None, None
