"""How does a document (test verdict, SBOM, provenance) stay with the image that it is about? As an OCI artifact.

In: a repository, the image's digest, and the document. Out: the document in the registry, found again from the digest
alone. Registries that know the referrers API are asked through it; for the others the client keeps the list itself,
under the tag `sha256-...`, as the specification says.

Source: OCI distribution-spec spec.md, "Pushing Manifests with Subject", "Referrers Tag Schema"; image-spec
manifest.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from nightjar_ci.errors import NightjarError
from nightjar_ci.images.publish.manifests import EMPTY, render_artifact, render_manifest
from nightjar_ci.web.registry import INDEX_TYPE, MANIFEST_TYPE, AbsentError, Repository, digest_of

TESTS_TYPE = "application/vnd.nightjar.image-tests.v1+json"
NIGHT_TYPE = "application/vnd.nightjar.night.v1+json"
SBOM_TYPE = "application/vnd.cyclonedx+json"
PROVENANCE_TYPE = "application/vnd.in-toto+json"


def attach(
    repository: Repository,
    subject: bytes,
    subject_type: str,
    kind: str,
    document: bytes,
    annotations: Mapping[str, str] | None = None,
) -> str:
    """Puts a document beside an image.

    Args:
        repository: where the image is.
        subject: the manifest or index that the document is about.
        subject_type: its media type.
        kind: the document's media type, which is also the artifact's type.
        document: its bytes.
        annotations: tell several artifacts of one kind apart.

    Returns: the digest of the artifact.

    Raises:
        NightjarError: the registry is not reached or refuses.
    """
    repository.put_blob(digest_of(EMPTY), EMPTY)
    repository.put_blob(digest_of(document), document)
    about = {"mediaType": subject_type, "digest": digest_of(subject), "size": len(subject)}
    manifest = render_artifact(kind, document, annotations=annotations or {}, subject=about)
    answer = repository.put_manifest(digest_of(manifest), manifest, MANIFEST_TYPE)
    if "OCI-Subject" not in answer:  # the registry keeps no list of referrers
        described = {
            "mediaType": MANIFEST_TYPE,
            "digest": digest_of(manifest),
            "size": len(manifest),
            "artifactType": kind,
            "annotations": dict(annotations or {}),
        }
        _list_by_hand(repository, digest_of(subject), described)
    return digest_of(manifest)


def find_documents(
    repository: Repository, digest: str, kind: str, annotations: Mapping[str, str] | None = None
) -> list[bytes]:
    """The documents of one kind beside an image, in the order in which they came.

    Raises:
        NightjarError: the registry is not reached, or its list cannot be read.
    """
    found = []
    for one in _referrers(repository, digest):
        there = one.get("annotations") or {}
        if one.get("artifactType") == kind and all(
            there.get(key) == value for key, value in (annotations or {}).items()
        ):
            manifest, _ = repository.read_manifest(one["digest"])
            try:
                found.append(repository.read_blob(manifest["layers"][0]["digest"]))
            except (KeyError, IndexError, TypeError):
                raise NightjarError(f"{repository.name}@{one['digest']} is no artifact with one document.") from None
    return found


def _referrers(repository: Repository, digest: str) -> list[dict[str, Any]]:
    for read in (repository.read_referrers, lambda digest: repository.read_manifest(digest.replace(":", "-"))[0]):
        try:
            return list(read(digest).get("manifests") or [])
        except AbsentError:
            continue
    return []


def _list_by_hand(repository: Repository, subject: str, described: dict[str, Any]) -> None:
    tag = subject.replace(":", "-")
    try:
        known = list(repository.read_manifest(tag)[0].get("manifests") or [])
    except AbsentError:
        known = []
    if described["digest"] in [one.get("digest") for one in known]:
        return
    index = {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [*known, described]}
    repository.put_manifest(tag, render_manifest(index), INDEX_TYPE)


def read_json(document: bytes, what: str) -> Any:
    """A document, parsed.

    Raises:
        NightjarError: it is no JSON.
    """
    try:
        return json.loads(document)
    except ValueError:
        raise NightjarError(f"{what} is no JSON.") from None
