"""How are a manifest and a manifest index written, and what does an index hold? Pure.

In: what an image is made of. Out: bytes that are the same whenever, wherever and by whomever they are made.

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
    """A manifest as bytes: the same document gives the same bytes."""
    return json.dumps(document, indent=1, sort_keys=True).encode()


def render_index_manifest(images: Mapping[str, bytes]) -> bytes:
    """The index over the images of several platforms.

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
    kind: str,
    document: bytes,
    *,
    annotations: Mapping[str, str],
    subject: Mapping[str, Any] | None = None,
) -> bytes:
    """The manifest of one document that is no image.

    Args:
        kind: the document's media type, which is also the artifact's type.
        document: its bytes, which are a blob; `EMPTY` is the other.
        annotations: of the manifest.
        subject: descriptor of the image that it is about; None where it stands alone.
    """
    manifest: dict[str, Any] = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "artifactType": kind,
        "config": {"mediaType": EMPTY_TYPE, "digest": digest_of(EMPTY), "size": len(EMPTY)},
        "layers": [{"mediaType": kind, "digest": digest_of(document), "size": len(document)}],
        "annotations": dict(annotations),
    }
    return render_manifest(manifest if subject is None else {**manifest, "subject": dict(subject)})


def read_platforms(index: Mapping[str, Any]) -> dict[str, str]:
    """Platform to digest of the images of an index.

    >>> read_platforms(json.loads(render_index_manifest({"linux/arm64": b"{}"}))) == {"linux/arm64": digest_of(b"{}")}
    True
    """
    found = {}
    for one in index.get("manifests") or []:
        platform = one.get("platform") or {}
        parts = [str(platform[key]) for key in ("os", "architecture", "variant") if platform.get(key)]
        found["/".join(parts)] = str(one["digest"])
    return found
