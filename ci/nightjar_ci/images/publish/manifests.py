"""OCI manifests and manifest indexes: rendered reproducibly, and read. Pure.

In: the parts of an image. Out: bytes that depend on nothing else.

Source: OCI image-spec image-index.md, manifest.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from nightjar_ci.web.registry import INDEX_TYPE, MANIFEST_TYPE, digest_of

EMPTY = b"{}"
EMPTY_TYPE = "application/vnd.oci.empty.v1+json"


def render_manifest(document: Mapping[str, Any]) -> bytes:
    """A manifest as bytes; equal documents give equal bytes."""
    return json.dumps(document, indent=1, sort_keys=True).encode()


def render_index_manifest(images: Mapping[str, bytes]) -> bytes:
    """The manifest index of the images of several platforms.

    Args:
        images: platform, such as `linux/arm64`, to manifest.
    """
    described = []
    for platform, manifest in sorted(images.items()):
        parts = dict(zip(("os", "architecture", "variant"), platform.split("/"), strict=False))
        described.append(
            {"mediaType": MANIFEST_TYPE, "digest": digest_of(manifest), "size": len(manifest), "platform": parts}
        )
    return render_manifest({"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": described})


def render_artifact(
    kind: str, document: bytes, *, annotations: Mapping[str, str], subject: Mapping[str, Any] | None = None
) -> bytes:
    """The manifest of an artifact: one document that is not an image.

    Args:
        document: its bytes, uploaded as a blob, as is `EMPTY`.
    """
    manifest: dict[str, Any] = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "artifactType": kind,
        "config": {"mediaType": EMPTY_TYPE, "digest": digest_of(EMPTY), "size": len(EMPTY)},
        "layers": [{"mediaType": kind, "digest": digest_of(document), "size": len(document)}],
        "annotations": dict(annotations),
    }
    if subject is not None:
        manifest["subject"] = dict(subject)
    return render_manifest(manifest)


def read_platforms(index: Mapping[str, Any]) -> dict[str, str]:
    """The images of a manifest index: platform to digest.

    >>> read_platforms(json.loads(render_index_manifest({"linux/arm64": b"{}"}))) == {"linux/arm64": digest_of(b"{}")}
    True
    """
    digests = {}
    for manifest in index.get("manifests") or []:
        platform = manifest.get("platform") or {}
        parts = [str(platform[key]) for key in ("os", "architecture", "variant") if platform.get(key)]
        digests["/".join(parts)] = str(manifest["digest"])
    return digests
