"""Signatures of a nightly image and of its provenance and SBOM, by cosign.

In: a nightly image of the index, and a key or none. Out: in the registry, a signature of the manifest index and of each
image, and for each image its provenance and SBOM as signed in-toto attestations (DSSE), which `cosign verify` and
`cosign verify-attestation` check. With a key no transparency log is used: the key proves who signed, not when. Without
one (keyless) Sigstore certifies who signs, such as a workflow, and its public log keeps the certificate.

Source: sigstore/cosign, doc/cosign_sign.md and doc/cosign_attest.md.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from nightjar_ci.errors import InputError, NightjarError
from nightjar_ci.images.publish.artifacts import PROVENANCE_TYPE, SBOM_TYPE, find_documents, read_json
from nightjar_ci.images.publish.nightly_index import NightlyImage
from nightjar_ci.tools import run_captured
from nightjar_ci.web.registry import Repository

PROGRAM = "cosign"
PASSWORD = "COSIGN_PASSWORD"
HINT = "install cosign (a package in Debian 13); create a key with `cosign generate-key-pair`"
KEYLESS_HINT = (
    "a job of GitHub Actions needs cosign (sigstore/cosign-installer) and `id-token: write`; elsewhere give a key"
)
ATTESTED = "slsaprovenance1"  # cosign's name of the provenance
GITHUB_ISSUER = "https://token.actions.githubusercontent.com"
# Releases 2 and 3 verify the format of release 2; release 3 signs in its own unless it is told not to.
_OLD = {"COSIGN_NEW_BUNDLE_FORMAT": "false", "COSIGN_USE_SIGNING_CONFIG": "false"}
_KINDS = {PROVENANCE_TYPE: ATTESTED, SBOM_TYPE: "cyclonedx"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Signer:
    """The required signer of an image: the owner of a key, or, without one, the name in a certificate.

    Attributes:
        key: cosign's public key: a file, or another value of `cosign --key`; empty: signed without a key.
        identity: the name in the certificate, such as the address of a workflow.
        issuer: the provider that vouched for the identity.
    """

    key: str = ""
    identity: str = ""
    issuer: str = GITHUB_ISSUER

    @property
    def name(self) -> str:
        return self.key or self.identity

    @property
    def options(self) -> tuple[str, ...]:
        if self.key:
            return ("--key", self.key, "--insecure-ignore-tlog=true")
        return ("--certificate-identity", self.identity, "--certificate-oidc-issuer", self.issuer)


def sign_image(
    night: NightlyImage, key: str, environ: Mapping[str, str], on_step: Callable[[str], None]
) -> tuple[str, ...]:
    if key and "://" not in key:
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
    if kind == PROVENANCE_TYPE:
        return document.get("predicate")
    return document


def _cosign(verb: str, key: str, options: list[str], reference: str, variables: Mapping[str, str]) -> None:
    keyed: list[str] = []
    if key:
        keyed = ["--key", key, "--tlog-upload=false"]
    hint = HINT if key else KEYLESS_HINT
    run_captured([PROGRAM, verb, *keyed, "--yes", *options, reference], variables={**_OLD, **variables}, hint=hint)
