"""Signatures of a nightly image and of its provenance and SBOM, by cosign.

In: a nightly image of the index, and a key. Out: in the registry, a signature of the manifest index and of each image,
and for each image its provenance and SBOM as signed in-toto attestations (DSSE), which `cosign verify` and
`cosign verify-attestation` check. No transparency log is used: the key proves who signed, not when.

Source: sigstore/cosign, doc/cosign_sign.md and doc/cosign_attest.md.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from nightjar_ci.errors import InputError, NightjarError
from nightjar_ci.images.process import run_captured
from nightjar_ci.images.publish.artifacts import PROVENANCE_TYPE, SBOM_TYPE, find_documents, read_json
from nightjar_ci.images.publish.nightly_index import NightlyImage
from nightjar_ci.web.registry import Repository

PROGRAM = "cosign"
PASSWORD = "COSIGN_PASSWORD"
HINT = "install cosign (a package in Debian 13); create a key with `cosign generate-key-pair`"
_KINDS = {PROVENANCE_TYPE: "slsaprovenance1", SBOM_TYPE: "cyclonedx"}


def sign_image(
    night: NightlyImage, key: str, environ: Mapping[str, str], on_step: Callable[[str], None]
) -> tuple[str, ...]:
    """Signs a published nightly image.

    Args:
        night: from the nightly index.
        key: a file, or another value of `cosign --key`, such as `awskms://...`.
        environ: contains the password of a key file.
        on_step: called with a line for each signature.

    Returns: the signed digests.

    Raises:
        InputError: there is no such key, or no password for it.
        NightjarError: an image has no provenance or SBOM attached, or the registry does not answer.
        ToolError: cosign is missing or failed.
    """
    if "://" not in key:
        if not Path(key).is_file():
            raise InputError(f"{key}: no such key file.", HINT)
        if PASSWORD not in environ:
            raise InputError(f"{PASSWORD} is not set.", f"set {PASSWORD}='' for a key without a password")
    repository = Repository(night.reference.rpartition("@")[0])
    variables = {PASSWORD: environ[PASSWORD]} if PASSWORD in environ else {}
    signed = []
    with tempfile.TemporaryDirectory(prefix="nightjar-sign-") as folder:
        for image in night.platforms.values():
            for kind, name in _KINDS.items():
                predicate = Path(folder, f"{name}.json")
                predicate.write_text(json.dumps(_find_predicate(repository, image.digest, kind)))
                on_step(f"{name} of {image.digest[:19]}")
                options = ["--type", name, "--predicate", str(predicate)]
                _cosign("attest", key, options, f"{repository.name}@{image.digest}", variables)
            signed.append(image.digest)
        on_step(f"signing {night.name} of {night.date}")
        _cosign("sign", key, ["--recursive"], f"{repository.name}@{night.reference.rpartition('@')[2]}", variables)
    return (*signed, night.reference.rpartition("@")[2])


def _find_predicate(repository: Repository, digest: str, kind: str) -> object:
    documents = find_documents(repository, digest, kind)
    if not documents:
        raise NightjarError(f"{repository.name}@{digest} has no {kind} attached.", "push it with `images push`")
    document = read_json(documents[-1], f"{repository.name}@{digest}: {kind}")
    return document.get("predicate") if kind == PROVENANCE_TYPE else document


def _cosign(verb: str, key: str, options: list[str], reference: str, variables: Mapping[str, str]) -> None:
    argv = [PROGRAM, verb, "--key", key, "--tlog-upload=false", "--yes", *options, reference]
    run_captured(argv, variables=variables, hint=HINT)
