"""What is in an image of an OCI layout, the folder that skopeo, buildah and buildx write?

In: a folder, and a tag where it holds several images. Out: layers and packages, read from the blobs themselves.

Source: OCI image-spec, image-layout.md and image-index.md.
"""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

import zstandard

from nightjar_ci.errors import InputError
from nightjar_ci.images.content.contents import LayerContents, merge_contents, scan_layer
from nightjar_ci.images.content.difference import ImageContent, LayerContent
from nightjar_ci.images.content.engine_archive import read_members

REF_NAME = "org.opencontainers.image.ref.name"
TAR_TYPES = (".tar", ".tar+gzip", ".tar.gzip", ".tar+zstd")
GZIP_MAGIC, ZSTD_MAGIC = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


def read_layout(folder: Path, tag: str | None, platform: str) -> ImageContent:
    """An image of a layout.

    Args:
        folder: holds `oci-layout`, `index.json` and `blobs`.
        tag: which image; may be None where there is one.
        platform: which image of an index of several.

    Raises:
        InputError: there is no such image, or the layout is damaged.
    """
    listed = parse_json(_read(folder / "index.json"), str(folder / "index.json")).get("manifests", [])
    names = {str(one.get("annotations", {}).get(REF_NAME, "")): str(one["digest"]) for one in listed}
    if (tag is None and len(listed) != 1) or (tag is not None and tag not in names):
        expected = ", ".join(sorted(filter(None, names))) or "none has a name"
        raise InputError(f"{folder}: no image {tag or 'alone'!r}: its tags are: {expected}.", f"oci:{folder}:TAG")
    digest = str(listed[0]["digest"]) if tag is None else names[tag]
    manifest = parse_json(_read(_blob(folder, digest)), digest)
    if "manifests" in manifest:
        digest = choose_platform(manifest, platform, str(folder))
        manifest = parse_json(_read(_blob(folder, digest)), digest)
    contents = [_scan(_blob(folder, one["digest"]), one["mediaType"]) for one in manifest["layers"]]
    layers = tuple(
        LayerContent(
            digest=one["digest"],
            size_bytes=one["size"],
            packages=None if held is None else tuple(sorted(f"{n}=={v}" for n, v in held.python.values())),
        )
        for one, held in zip(manifest["layers"], contents, strict=True)
    )
    known = [held for held in contents if held is not None]
    python, system = merge_contents(known) if len(known) == len(contents) else (None, None)
    return ImageContent(name=f"{folder}{f':{tag}' if tag else ''}", layers=layers, python=python, system=system)


def choose_platform(index: dict[str, Any], platform: str, where: str) -> str:
    """The digest of the manifest of a platform in an image index.

    Raises:
        InputError: it has no image for it.
    """
    found = {}
    for one in index["manifests"]:
        described = one.get("platform", {})
        parts = (described.get("os"), described.get("architecture"), described.get("variant"))
        found["/".join(part for part in parts if part)] = str(one["digest"])
    if platform not in found:
        raise InputError(f"{where}: no image for {platform}: expected one of {', '.join(sorted(found))}.", "--platform")
    return found[platform]


def parse_json(text: bytes, where: str) -> dict[str, Any]:
    """A JSON object of an OCI layout.

    Raises:
        InputError: it is none.
    """
    try:
        parsed = json.loads(text)
    except ValueError as error:
        raise InputError(f"{where}: {error}.", "is the layout whole?") from None
    if not isinstance(parsed, dict):
        raise InputError(f"{where}: expected a JSON object.", "is the layout whole?")
    return parsed


def _blob(folder: Path, digest: str) -> Path:
    algorithm, _, value = digest.partition(":")
    return folder / "blobs" / algorithm / value


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}.", "is it a whole OCI layout?") from None


def unpack(path: Path) -> IO[bytes]:
    """The bytes of a layer, however it is compressed."""
    with path.open("rb") as file:
        magic = file.read(len(ZSTD_MAGIC))
    if magic.startswith(GZIP_MAGIC):
        return cast(IO[bytes], gzip.open(path))
    if magic == ZSTD_MAGIC:
        reader = zstandard.ZstdDecompressor().stream_reader(path.open("rb"), read_across_frames=True)
        return io.BufferedReader(cast(io.RawIOBase, reader))
    return path.open("rb")


def _scan(path: Path, media_type: str) -> LayerContents | None:
    if not media_type.endswith(TAR_TYPES):
        return None
    try:
        with unpack(path) as stream:
            current: list[tarfile.TarFile] = []

            def members() -> Iterator[tarfile.TarInfo]:
                for tar, member in read_members(stream):
                    current[:] = [tar]
                    yield member

            return scan_layer(members(), lambda member: cast(IO[bytes], current[0].extractfile(member)).read())
    except (OSError, EOFError, tarfile.TarError, zstandard.ZstdError) as error:
        raise InputError(f"{path}: no layer can be read from it: {error}.", "is it a whole OCI layout?") from None
