"""Who says that a night is what its provenance claims? cosign, with somebody's key, over what `images push` left.

In: a night of the index, and a key. Out: in the registry, a signature of the manifest index and of each image, and for
each image its provenance and SBOM as signed in-toto attestations (DSSE), which `cosign verify` and
`cosign verify-attestation` check. No transparency log hears of it: a key proves who signed, and not when.

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
from nightjar_ci.images.publish.nightly_index import Night
from nightjar_ci.web.registry import Repository

PROGRAM = "cosign"
PASSWORD = "COSIGN_PASSWORD"
HINT = "cosign is a package of Debian 13 and a single program elsewhere; `cosign generate-key-pair` makes a key"
_KINDS = {PROVENANCE_TYPE: "slsaprovenance1", SBOM_TYPE: "cyclonedx"}


def sign_night(night: Night, key: str, environ: Mapping[str, str], on_step: Callable[[str], None]) -> tuple[str, ...]:
    """Signs a published night.

    Args:
        night: of the nightly index.
        key: a file, or what else `cosign --key` takes, such as `awskms://...`.
        environ: holds the password of a file.
        on_step: called with a line for each signature.

    Returns: what was signed, by digest.

    Raises:
        InputError: there is no such key, or no password for it.
        NightjarError: an image has no provenance beside it, or the registry does not answer.
        ToolError: cosign is missing or failed.
    """
    if "://" not in key:
        if not Path(key).is_file():
            raise InputError(f"{key}: there is no such key.", HINT)
        if PASSWORD not in environ:
            raise InputError(f"{PASSWORD} is not set.", f"{PASSWORD}='' for a key without a password")
    repository = Repository(night.reference.rpartition("@")[0])
    variables = {PASSWORD: environ[PASSWORD]} if PASSWORD in environ else {}
    signed = []
    with tempfile.TemporaryDirectory(prefix="nightjar-sign-") as folder:
        for image in night.platforms.values():
            for kind, name in _KINDS.items():
                predicate = Path(folder, f"{name}.json")
                predicate.write_text(json.dumps(_find_predicate(repository, image.digest, kind)))
                on_step(f"{name} of {image.digest[:19]}")
                about = ["--type", name, "--predicate", str(predicate)]
                _cosign("attest", key, about, f"{repository.name}@{image.digest}", variables)
            signed.append(image.digest)
        on_step(f"signing {night.name} of {night.date}")
        _cosign("sign", key, ["--recursive"], f"{repository.name}@{night.reference.rpartition('@')[2]}", variables)
    return (*signed, night.reference.rpartition("@")[2])


def _find_predicate(repository: Repository, digest: str, kind: str) -> object:
    documents = find_documents(repository, digest, kind)
    if not documents:
        raise NightjarError(f"{repository.name}@{digest}: no {kind} beside it.", "push the night with `images push`")
    found = read_json(documents[-1], f"{repository.name}@{digest}: {kind}")
    return found.get("predicate") if kind == PROVENANCE_TYPE else found


def _cosign(verb: str, key: str, options: list[str], reference: str, variables: Mapping[str, str]) -> None:
    argv = [PROGRAM, verb, "--key", key, "--tlog-upload=false", "--yes", *options, reference]
    run_captured(argv, variables=variables, hint=HINT)
