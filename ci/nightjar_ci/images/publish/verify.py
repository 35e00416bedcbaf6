"""A check of a nightly image in its registry: complete, tested, described and, with a signer, signed by it.

In: a nightly image of the index. Out: a message for each fault. Every manifest is checked against its digest, every
blob must be there, and the attached documents must be about this image.
"""

from __future__ import annotations

import re
from pathlib import Path

from nightjar_ci.errors import InputError, NightjarError
from nightjar_ci.images.publish.artifacts import PROVENANCE_TYPE, SBOM_TYPE, find_documents, read_json
from nightjar_ci.images.publish.manifests import read_platforms
from nightjar_ci.images.publish.nightly_index import NightlyImage
from nightjar_ci.images.publish.publish import find_obstacle
from nightjar_ci.images.publish.sign import ATTESTED, HINT, PROGRAM, Signer
from nightjar_ci.images.tested import CHANNELS
from nightjar_ci.tools import ToolError, run_captured
from nightjar_ci.web.registry import AbsentError, Repository

# of `cosign verify` and `cosign verify-attestation`
NOT_SIGNED = ("no signatures found", "no matching signatures", "no matching attestations", "found no attestations")


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
