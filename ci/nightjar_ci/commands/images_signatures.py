"""The options of commands that sign or check signatures, and what they mean.

In: a key, or the identity of whoever signs without one, from the command line or a variable. Out: a `Signer`, or
signatures in the registry.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from nightjar_ci.commands.images_steps import show_steps
from nightjar_ci.errors import InputError

if TYPE_CHECKING:
    from nightjar_ci.images.publish.nightly_index import NightlyImage
    from nightjar_ci.images.publish.sign import Signer

KEYLESS = "keyless"
Key = Annotated[
    str,
    typer.Option(help="cosign's public key (default: $NIGHTJAR_PUBLIC_KEY, else no signature).", show_default=False),
]
By = Annotated[
    str,
    typer.Option(
        "--signer",
        help="Who signed without a key, such as the address of a workflow (default: $NIGHTJAR_SIGNER).",
        show_default=False,
    ),
]
Issuer = Annotated[
    str,
    typer.Option(help="Who vouches for --signer (default: GitHub Actions).", show_default=False),
]


def sign_night(night: NightlyImage, key: str) -> tuple[str, ...]:
    """Signs a published night; the signed digests."""
    from nightjar_ci.images.publish.sign import sign_image

    with show_steps() as on_step:
        return sign_image(night, key, os.environ, on_step)


def read_signer(key: str, signer: str, issuer: str) -> Signer | None:
    """Whose signatures are accepted: what the command line says, else what a variable says; None: nobody is named.

    Raises:
        InputError: both a key and an identity are named, or an issuer alone.
    """
    from nightjar_ci.images.publish.sign import GITHUB_ISSUER, Signer
    from nightjar_ci.settings import read_settings

    if not (key or signer):
        key, signer = read_settings().public_key or "", read_settings().signer or ""
    if key and signer:
        raise InputError("--key and --signer (or their variables) exclude each other.", "name one of them")
    if issuer and not signer:
        raise InputError("--issuer without --signer says nothing.", "add --signer")
    return Signer(key=key, identity=signer, issuer=issuer or GITHUB_ISSUER) if key or signer else None
