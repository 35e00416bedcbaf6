"""The commands `nightjar-ci images verify|pull`: nightly images in a registry."""

from __future__ import annotations

import typer

from nightjar_ci.commands.images_nights import Channel, From, Where, check_channel, find_night, find_repository
from nightjar_ci.commands.options import DryRun, show_steps
from nightjar_ci.errors import ExitCode
from nightjar_ci.images.tested import CHANNELS


def verify(where: Where, channel: Channel = CHANNELS[0]) -> None:
    """Check a nightly image: every manifest and blob, its test report, SBOM and provenance.

    With NIGHTJAR_PUBLIC_KEY or NIGHTJAR_SIGNER also its signature, and that its provenance is signed.

    Exits with 1 and names the faults if there are any.
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
