"""The options of commands that sign or check signatures, and what they mean.

In: a key, or the identity of whoever signs without one, from the command line or a variable. Out: a `Signer`, or
signatures in the registry.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from nightjar_ci.commands.images_steps import show_steps

if TYPE_CHECKING:
    from nightjar_ci.images.publish.nightly_index import NightlyImage

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
