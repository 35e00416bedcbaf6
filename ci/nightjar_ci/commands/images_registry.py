"""The commands `nightjar-ci images choose|verify|pull`: images that are there."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import asdict
from typing import Annotated

import typer

from nightjar_ci.commands.images_nights import Channel, From, Where, check_channel, find_night, find_repository
from nightjar_ci.commands.options import DryRun, Json, show_steps
from nightjar_ci.errors import ExitCode, InputError
from nightjar_ci.images.tested import CHANNELS


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
    from nightjar_ci.images.choose import judge_flavors, read_capability, tag_architecture

    if bool(driver) != bool(gpu):
        raise InputError("--driver and --gpu go together.", "add the missing one, or leave out both")
    if driver and not re.fullmatch(r"\d+(\.\d+)*", driver):
        raise InputError(f"--driver: {driver!r} is not a valid version.", "write it like 550.54.15")
    version, capability = (driver, read_capability(gpu)) if driver else _read_machine()
    fits = judge_flavors(version, capability)
    if as_json:
        typer.echo(json.dumps([asdict(fit) for fit in fits], indent=1))
        return
    suffix = "-arm64" if tag_architecture(gpu) == "arm64" else ""
    for fit in fits:
        answer = f"no: {fit.reason}" if fit.reason else f"yes, such as nightjar/jax:{fit.flavor}{suffix}"
        typer.echo(f"{fit.flavor:<8} {answer}")


def verify(where: Where, channel: Channel = CHANNELS[0]) -> None:
    """Check a nightly image: every manifest and blob, its test report, SBOM and provenance.

    With NIGHTJAR_PUBLIC_KEY or NIGHTJAR_SIGNER also its signature, and that its provenance is signed.
    """
    from nightjar_ci.images.publish.verify import find_faults, find_signer

    check_channel(channel)
    night, accepted = find_night(where), find_signer()
    faults = find_faults(night, accepted, channel)
    for fault in faults:
        typer.echo(fault)
    if faults:
        raise typer.Exit(ExitCode.NO)
    signed = f", signed by {accepted.name}" if accepted else ""
    typer.echo(f"{night.reference} is complete, tested and described{signed}")
    for platform, image in night.platforms.items():
        typer.echo(f"{platform} in its tests: {', '.join(image.ran) or 'not said by its report'}")


def pull(where: Where, repository: From = "", dry_run: DryRun = False) -> None:
    """Pull a nightly image by its digest, tag it NAME-DATE, and print its reference.

    The digest comes from the nightly index, so that a moved tag cannot give you another image. An index that refers to
    another repository, or to a tag, is refused with exit code 2. With NIGHTJAR_PUBLIC_KEY or NIGHTJAR_SIGNER nothing is
    pulled that `images verify` would refuse: exit code 1.
    """
    from nightjar_ci.images.publish.nightly_index import check_reference
    from nightjar_ci.images.publish.verify import find_faults, find_signer
    from nightjar_ci.tools import run_captured, run_streamed

    night = find_night(where)
    reference = check_reference(night, find_repository(where, repository))
    if accepted := find_signer():
        faults = find_faults(night.model_copy(update={"reference": reference}), accepted)
        for fault in faults:
            typer.echo(fault, err=True)
        if faults:
            raise typer.Exit(ExitCode.NO)
    named = f"{reference.partition('@')[0]}:{night.name}-{night.date}"
    commands = [["docker", "pull", reference], ["docker", "tag", reference, named]]
    if dry_run:
        for argv in commands:
            typer.echo(" ".join(argv))
        return
    with show_steps() as on_step:
        run_streamed(commands[0], on_step, hint="check the network and `docker login`")
        run_captured(commands[1])
    typer.echo(named)


def _read_machine() -> tuple[str | None, int | None]:
    from nightjar_ci.tools import ToolError, run_captured

    query = ["nvidia-smi", "--query-gpu=driver_version,compute_cap", "--format=csv,noheader"]
    try:
        rows = [line.split(", ") for line in run_captured(query).splitlines() if line.strip()]
    except ToolError as error:
        if shutil.which(query[0]) is not None:
            typer.echo(f"warning: {error.message}", err=True)
        return None, None
    if not rows:
        return None, None
    try:
        return rows[0][0], min(round(float(row[1]) * 10) for row in rows)
    except (ValueError, IndexError):  # `[N/A]`, of a driver that does not answer for its GPU
        return None, None
