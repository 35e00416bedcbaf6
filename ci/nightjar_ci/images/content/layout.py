"""The content of an image in an OCI layout, the folder format of skopeo, buildah and buildx.

In: a folder, and a tag if it contains several images. Out: layers and packages, read from the blobs.

Source: OCI image-spec, image-layout.md and image-index.md.
"""

from __future__ import annotations

import gzip
import json
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, cast

from nightjar_ci.errors import InputError
from nightjar_ci.images.content.contents import LayerContents, merge_contents, scan_layer
from nightjar_ci.images.content.difference import ImageContent, LayerContent
from nightjar_ci.images.content.engine_archive import read_members
from nightjar_ci.images.zstandard import zstd

REF_NAME = "org.opencontainers.image.ref.name"
TAR_TYPES = (".tar", ".tar+gzip", ".tar.gzip", ".tar+zstd")
GZIP_MAGIC, ZSTD_MAGIC = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
DAMAGED_HINT = "check that this is a complete OCI layout"


def read_layout(folder: Path, tag: str | None, platform: str) -> ImageContent:
    """An image of a layout.

    Args:
        folder: contains `oci-layout`, `index.json` and `blobs`.
        tag: of the image; may be None if the layout has only one.
        platform: the image to take from an index of several.
    """
    digest = _find_image(folder, tag)
    manifest = parse_json(_read(_blob(folder, digest)), digest)
    if "manifests" in manifest:
        digest = choose_platform(manifest, platform, str(folder))
        manifest = parse_json(_read(_blob(folder, digest)), digest)
    contents = [_scan(_blob(folder, layer["digest"]), layer["mediaType"]) for layer in manifest["layers"]]
    layers = tuple(
        LayerContent(digest=layer["digest"], size_bytes=layer["size"], packages=content.packages if content else None)
        for layer, content in zip(manifest["layers"], contents, strict=True)
    )
    image = ImageContent(name=f"{folder}:{tag}" if tag else str(folder), layers=layers)
    scanned = [content for content in contents if content is not None]
    if len(scanned) < len(contents):
        return image
    python, system = merge_contents(scanned)
    return replace(image, python=python, system=system)


def _find_image(folder: Path, tag: str | None) -> str:
    manifests = parse_json(_read(folder / "index.json"), str(folder / "index.json")).get("manifests", [])
    digests = {str(entry.get("annotations", {}).get(REF_NAME, "")): str(entry["digest"]) for entry in manifests}
    if tag is None and len(manifests) == 1:
        return str(manifests[0]["digest"])
    if tag in digests:
        return digests[tag]
    tags = ", ".join(sorted(filter(None, digests))) or "none"
    if tag is None:
        raise InputError(f"{folder} has {len(manifests)} images, with the tags: {tags}.", f"use oci:{folder}:TAG")
    raise InputError(f"{folder} has no image {tag!r}; its tags: {tags}.", f"use oci:{folder}:TAG")


def choose_platform(index: dict[str, Any], platform: str, where: str) -> str:
    """The manifest digest of a platform in an image index."""
    digests = {}
    for manifest in index["manifests"]:
        described = manifest.get("platform", {})
        parts = (described.get("os"), described.get("architecture"), described.get("variant"))
        digests["/".join(part for part in parts if part)] = str(manifest["digest"])
    if platform not in digests:
        platforms = ", ".join(sorted(digests))
        raise InputError(f"{where}: no image for {platform}: expected one of {platforms}.", "use --platform")
    return digests[platform]


def parse_json(text: bytes, where: str) -> dict[str, Any]:
    try:
        parsed = json.loads(text)
    except ValueError as error:
        raise InputError(f"{where}: {error}.", DAMAGED_HINT) from None
    if not isinstance(parsed, dict):
        raise InputError(f"{where}: expected a JSON object.", DAMAGED_HINT)
    return parsed


def _blob(folder: Path, digest: str) -> Path:
    algorithm, _, value = digest.partition(":")
    return folder / "blobs" / algorithm / value


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}.", DAMAGED_HINT) from None


def unpack(path: Path) -> IO[bytes]:
    """The uncompressed bytes of a layer: gzip, Zstandard or plain tar."""
    with path.open("rb") as file:
        magic = file.read(len(ZSTD_MAGIC))
    if magic.startswith(GZIP_MAGIC):
        return cast(IO[bytes], gzip.open(path))
    if magic == ZSTD_MAGIC:
        return cast(IO[bytes], zstd.open(path))
    return path.open("rb")


def _scan(path: Path, media_type: str) -> LayerContents | None:
    if not media_type.endswith(TAR_TYPES):
        return None
    try:
        with unpack(path) as stream:
            return scan_layer(read_members(stream))
    except (OSError, EOFError, tarfile.TarError, zstd.ZstdError) as error:
        raise InputError(f"{path}: cannot read a layer from it: {error}.", DAMAGED_HINT) from None
