"""Job images on a machine that pulls only signed ones.

In: an image reference of a matrix, and its required signer. Out: the reference with the digest that was checked, so
that every pull, on this machine or on a node, gets the signed image even if the tag moves.
"""

from __future__ import annotations

from functools import cache
from threading import Lock

from nightjar_ci.errors import InputError, NightjarError
from nightjar_ci.images.publish.manifests import read_platforms
from nightjar_ci.images.publish.sign import GITHUB_ISSUER, Signer
from nightjar_ci.images.publish.verify import check_key, find_unsigned
from nightjar_ci.settings import read_settings
from nightjar_ci.web.manifest_shape import DIGEST
from nightjar_ci.web.registry import Repository, split_reference

_lock = Lock()


class NotSignedError(NightjarError):
    """An image lacks a signature that this machine requires: exit code 3."""


def find_signer() -> Signer | None:
    """The signer that this machine accepts, from its variables; None: signatures are not checked."""
    settings = read_settings()
    key, identity = settings.public_key or "", settings.signer or ""
    if key and identity:
        raise InputError("NIGHTJAR_PUBLIC_KEY and NIGHTJAR_SIGNER exclude each other.", "set one of them")
    if not (key or identity):
        return None
    return Signer(key=key, identity=identity, issuer=settings.signer_issuer or GITHUB_ISSUER)


def pin_signed(image: str, signer: Signer) -> str:
    """The image by its digest, once verified; the same for the whole process, even if the tag moves."""
    with _lock:  # workers that want the same image wait for one check
        return _pin(image, signer)


@cache
def _pin(image: str, signer: Signer) -> str:
    check_key(signer)
    name, tag = split_reference(image)
    repository = Repository(name)
    digest = tag if DIGEST.fullmatch(tag) else repository.digest(tag)
    manifest, _ = repository.read_manifest(digest)
    pinned = f"{repository.name}@{digest}"
    platforms = [f"{repository.name}@{platform}" for platform in read_platforms(manifest).values()]
    if faults := find_unsigned(pinned, platforms or [pinned], signer):
        raise NotSignedError(
            f"{image} is not pulled: {'; '.join(faults)}.",
            "sign it with `nightjar-ci images push --sign KEY`, or name its signer (NIGHTJAR_SIGNER)",
        )
    return pinned
