"""The shape of manifests, whoever sent them.

In: a JSON object from a registry. Out: its keys that have another type than the specification gives them.

Source: github.com/opencontainers/image-spec, manifest.md, image-index.md, descriptor.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

DIGEST = re.compile(r"[a-z0-9+._-]+:[0-9a-fA-F]{32,}")


def find_wrong_keys(document: Mapping[str, Any]) -> list[str]:
    """The keys of a manifest, an index or a list of referrers that cannot be read.

    >>> find_wrong_keys({"mediaType": "x", "layers": [{"digest": "../x", "size": 1}], "annotations": {"a": 1}})
    ['layers', 'annotations']
    """
    wrong = [key for key in ("mediaType", "artifactType") if not isinstance(document.get(key, ""), str)]
    wrong += [key for key in ("config", "subject") if key in document and not _is_descriptor(document[key])]
    for key in ("layers", "manifests"):
        descriptors = document.get(key, [])
        if not isinstance(descriptors, list) or not all(map(_is_descriptor, descriptors)):
            wrong.append(key)
    if not _holds_texts(document.get("annotations", {})):
        wrong.append("annotations")
    return wrong


def _is_descriptor(value: object) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("digest"), str)
        and DIGEST.fullmatch(value["digest"]) is not None
        and type(value.get("size")) is int
        and value["size"] >= 0
        and isinstance(value.get("mediaType", ""), str)
        and isinstance(value.get("artifactType", ""), str)
        and _holds_texts(value.get("annotations", {}))
        and isinstance(platform := value.get("platform", {}), dict)
        and all(isinstance(platform.get(key, ""), str) for key in ("os", "architecture", "variant"))
    )


def _holds_texts(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())
