"""A check of a nightly image in its registry: complete, tested, described and, with a signer, signed by it.

In: a nightly image of the index. Out: a message for each fault. Every manifest is checked against its digest, every
blob must be there, and the attached documents must be about this image. A job's image is pinned to the digest that was
checked, so that every pull, on this machine or on a node, gets the signed image even if the tag moves.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from threading import Lock

from nightjar_ci.errors import InputError, NightjarError
from nightjar_ci.images.publish.artifacts import PROVENANCE_TYPE, SBOM_TYPE, find_documents, read_json
from nightjar_ci.images.publish.manifests import read_platforms
from nightjar_ci.images.publish.nightly_index import NightlyImage
from nightjar_ci.images.publish.publish import find_obstacle
from nightjar_ci.images.publish.sign import ATTESTED, GITHUB_ISSUER, HINT, PROGRAM, Signer
from nightjar_ci.images.tested import CHANNELS
from nightjar_ci.settings import read_settings
from nightjar_ci.tools import ToolError, run_captured
from nightjar_ci.web.manifest_shape import DIGEST
from nightjar_ci.web.registry import AbsentError, Repository, split_reference

# of `cosign verify` and `cosign verify-attestation`
NOT_SIGNED = ("no signatures found", "no matching signatures", "no matching attestations", "found no attestations")
_lock = Lock()


def find_faults(night: NightlyImage, signer: Signer | None, channel: str = CHANNELS[0]) -> tuple[str, ...]:
    """The faults of a nightly image; empty if there are none.

    Args:
        signer: the required signer of the image and of each platform's provenance; None: signatures are not checked.
    """
    if signer is not None:
        check_key(signer)
    name, _, digest = night.reference.rpartition("@")
    repository = Repository(name)
    faults: list[str] = []
    try:
        index, _ = repository.read_manifest(digest)
    except AbsentError:
        return (f"{night.reference} is not in the registry",)
    images = read_platforms(index)
    if images != {platform: image.digest for platform, image in night.platforms.items()}:
        faults.append("the nightly index lists other images than the manifest index")
    if not images:
        faults.append("it has no image of any platform")
    for platform, image in images.items():
        faults += [f"{platform} {fault}" for fault in _check_image(repository, image, channel)]
    if signer is not None:
        faults += find_unsigned(night.reference, [f"{name}@{image}" for image in images.values()], signer)
    return tuple(faults)


def check_key(signer: Signer) -> None:
    """Checks that a signer's key file exists, if the key is a file."""
    if signer.key and not re.match(r"\w+:", signer.key) and not Path(signer.key).is_file():
        raise InputError(
            f"NIGHTJAR_PUBLIC_KEY: {signer.key!r} is not a file.",
            "give cosign's public key, such as cosign.pub",
        )


def find_unsigned(night: str, images: list[str], signer: Signer) -> list[str]:
    """The signatures that a nightly image lacks: its own, and of each platform's provenance.

    Args:
        night: the reference of its manifest index, or of its only manifest, by digest.
    """
    run_captured([PROGRAM, "version"], hint=HINT)
    faults = []
    if not _holds("verify", *signer.options, night):
        faults.append(f"{night} has no signature of {signer.name}")
    faults += [
        f"{image} has no provenance signed by {signer.name}"
        for image in images
        if not _holds("verify-attestation", "--type", ATTESTED, *signer.options, image)
    ]
    return faults


def _check_image(repository: Repository, digest: str, channel: str) -> list[str]:
    try:
        manifest, _ = repository.read_image(digest)
    except AbsentError:
        return [f"{digest} is not in the registry"]
    blobs = [manifest["config"]["digest"], *(layer["digest"] for layer in manifest["layers"])]
    faults = [f"lacks the blob {blob}" for blob in blobs if not repository.has_blob(blob)]
    if reason := find_obstacle(repository, digest, channel):
        faults.append(reason)
    if not find_documents(repository, digest, SBOM_TYPE):
        faults.append("has no SBOM")
    provenances = find_documents(repository, digest, PROVENANCE_TYPE)
    if not provenances:
        faults.append("has no provenance")
    elif not any(_is_about(document, digest) for document in provenances):
        faults.append("has the provenance of another image")
    return faults


def _is_about(document: bytes, digest: str) -> bool:
    try:
        subjects = read_json(document, "provenance")["subject"]
        return any(f"sha256:{subject['digest']['sha256']}" == digest for subject in subjects)
    except (NightjarError, KeyError, TypeError):
        return False


def _holds(*arguments: str) -> bool:
    try:
        run_captured([PROGRAM, *arguments])
    except ToolError as error:
        if any(answer in str(error) for answer in NOT_SIGNED):
            return False
        raise  # the registry or the key cannot be read, for example: the answer is unknown
    return True


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
