"""Documents attached to an image (test report, SBOM, provenance) as OCI artifacts.

In: a repository, the image's digest, and the document. Out: an artifact in the registry that the digest leads to. For a
registry without the referrers API, the client maintains the list of artifacts under the tag `sha256-...`, as the
specification requires.

Source: OCI distribution-spec spec.md, "Pushing Manifests with Subject", "Referrers Tag Schema"; image-spec
manifest.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from nightjar_ci.errors import NightjarError
from nightjar_ci.images.publish.manifests import EMPTY, render_artifact, render_manifest
from nightjar_ci.web.registry import INDEX_TYPE, MANIFEST_TYPE, AbsentError, RegistryError, Repository, digest_of

TESTS_TYPE = "application/vnd.nightjar.image-tests.v1+json"
NIGHT_TYPE = "application/vnd.nightjar.night.v1+json"
SBOM_TYPE = "application/vnd.cyclonedx+json"
PINS_TYPE = "application/vnd.nightjar.pins.v1+json"
PROVENANCE_TYPE = "application/vnd.in-toto+json"


def attach(
    repository: Repository,
    subject: bytes,
    subject_type: str,
    kind: str,
    document: bytes,
    annotations: Mapping[str, str] | None = None,
) -> str:
    repository.put_blob(digest_of(EMPTY), EMPTY)
    repository.put_blob(digest_of(document), document)
    target = {"mediaType": subject_type, "digest": digest_of(subject), "size": len(subject)}
    manifest = render_artifact(kind, document, annotations=annotations or {}, subject=target)
    headers = repository.put_manifest(digest_of(manifest), manifest, MANIFEST_TYPE)
    if "OCI-Subject" not in headers:  # the registry has no referrers API
        descriptor = {
            "mediaType": MANIFEST_TYPE,
            "digest": digest_of(manifest),
            "size": len(manifest),
            "artifactType": kind,
            "annotations": dict(annotations or {}),
        }
        _add_to_list(repository, digest_of(subject), descriptor)
    return digest_of(manifest)


def find_documents(
    repository: Repository, digest: str, kind: str, annotations: Mapping[str, str] | None = None
) -> list[bytes]:
    """The documents of one kind attached to an image, oldest first."""
    documents = []
    for artifact in list_artifacts(repository, digest):
        if artifact.get("artifactType") != kind:
            continue
        if not (annotations or {}).items() <= (artifact.get("annotations") or {}).items():
            continue
        manifest, _ = repository.read_image(artifact["digest"])
        documents.append(repository.read_blob(manifest["layers"][0]["digest"]))
    return documents


def list_artifacts(repository: Repository, digest: str) -> list[dict[str, Any]]:
    """The descriptors of the artifacts attached to an image, oldest first."""
    refused = None
    for read in (repository.read_referrers, lambda digest: repository.read_manifest(digest.replace(":", "-"))[0]):
        try:
            return list(read(digest).get("manifests") or [])
        except AbsentError:
            continue
        except RegistryError as error:  # ghcr.io limits how often anyone asks for referrers, and has none
            refused = refused or error
    if refused is not None:
        raise refused
    return []


def _add_to_list(repository: Repository, subject: str, descriptor: dict[str, Any]) -> None:
    tag = subject.replace(":", "-")
    try:
        descriptors = list(repository.read_manifest(tag)[0].get("manifests") or [])
    except AbsentError:
        descriptors = []
    if descriptor["digest"] in [listed.get("digest") for listed in descriptors]:
        return
    index = {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [*descriptors, descriptor]}
    repository.put_manifest(tag, render_manifest(index), INDEX_TYPE)


def read_json(document: bytes, what: str) -> Any:
    try:
        return json.loads(document)
    except ValueError:
        raise NightjarError(f"{what} is not valid JSON.") from None
