"""What would be pushed of an image that the engine holds? Its layers, compressed, its configuration and its manifest.

In: tags of images, and what is known of layers that were packed before. Out: for each image an OCI manifest, its
blobs and the packages inside. Images that share layers are saved together, and each layer is packed once in its life:
the state folder remembers the digest of the blob that it became, and an upload of what the registry has is not
repeated. A layer whose files the engine wrote in another order than usual is put in order (`layer_order.py`), and the
configuration names it so.

Source: OCI image-spec manifest.md, config.md, descriptor.md. `docker save` since 25.0 writes an OCI layout.
"""

from __future__ import annotations

import io
import json
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from pydantic import BaseModel, ConfigDict, Field

from nightjar_ci.errors import NightjarError
from nightjar_ci.formats.documents import read_document, write_json
from nightjar_ci.images.content.contents import LayerContents, merge_contents, scan_layer
from nightjar_ci.images.content.engine_archive import read_members, save_images
from nightjar_ci.images.content.layout import unpack
from nightjar_ci.images.layering.layer_order import stands_in_order, write_in_order
from nightjar_ci.images.publish.layer_blob import DEFAULT, BlobWriter, Compression, LayerBlob
from nightjar_ci.images.publish.manifests import render_manifest
from nightjar_ci.web.registry import MANIFEST_TYPE, digest_of

CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar+"  # and the compression
LAYER_SCHEMA = "nightjar.layer/1"
_READ_BYTES = 2**22


class PackedLayer(BaseModel):
    """What became of a layer: kept in the state folder, by `diff_id` and compression."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_: str = Field(alias="schema")
    diff_id: str
    digest: str
    size_bytes: int
    contents: LayerContents
    compression: Compression

    @property
    def descriptor(self) -> dict[str, str | int]:
        """As a manifest names it."""
        return {"mediaType": LAYER_TYPE + self.compression, "digest": self.digest, "size": self.size_bytes}


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedImage:
    """An image, ready to be pushed.

    Attributes:
        tags: what the engine calls it.
        config: the configuration, as it was built; with the digests of layers that were put in order.
        layers: the lowest first.
        platform: such as `linux/amd64`.
        labels: those of the configuration.
        python, system: packages inside, name to version.
    """

    tags: tuple[str, ...]
    config: bytes
    layers: tuple[PackedLayer, ...]
    platform: str
    labels: dict[str, str]
    python: dict[str, str]
    system: dict[str, str]

    @property
    def id(self) -> str:
        """The digest of the configuration: the engine's id, where no layer had to be put in order."""
        return digest_of(self.config)

    @property
    def manifest(self) -> bytes:
        """The OCI manifest; it says nothing of when or where it was pushed."""
        return render_manifest(
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST_TYPE,
                "config": {"mediaType": CONFIG_TYPE, "digest": digest_of(self.config), "size": len(self.config)},
                "layers": [layer.descriptor for layer in self.layers],
            }
        )


class Packer:
    """Packs images; the files of the blobs lie in a folder until `upload` has taken them.

    Args:
        scratch: folder for compressed layers.
        memory: folder that remembers packed layers.
        has_blob: whether the registry has a blob.
        upload: takes a blob's digest and file.
        on_step: called with a line for each layer.
        compression: of the blobs.
    """

    def __init__(
        self,
        scratch: Path,
        memory: Path,
        has_blob: Callable[[str], bool],
        upload: Callable[[str, Path], object],
        on_step: Callable[[str], None],
        compression: Compression = DEFAULT,
    ) -> None:
        self._scratch, self._memory, self._compression = scratch, memory, compression
        self._has_blob, self._upload, self._on_step = has_blob, upload, on_step

    def pack(self, tags: Sequence[str]) -> dict[str, PackedImage]:
        """Packs images, and uploads those of their layers that the registry lacks.

        Returns: by tag.

        Raises:
            ToolError: the engine has no such image, or does not answer.
            NightjarError: what the engine wrote is no image.
        """
        layers: dict[str, PackedLayer] = {}
        documents: dict[str, bytes] = {}
        with save_images(tags) as files:
            for file in files:
                if file.is_layer:
                    layers[file.name] = self._pack_layer(f"sha256:{file.name.rpartition('/')[2]}", file.stream)
                else:
                    documents[file.name] = file.stream.read()
        try:
            listed = json.loads(documents["manifest.json"])
            images = [_assemble(image, layers, documents) for image in listed]
            return {tag: image for image in images for tag in image.tags if tag in tags}
        except (KeyError, ValueError, TypeError) as error:
            raise NightjarError(f"`docker save` wrote no archive of images: {type(error).__name__} {error}.") from None

    def _pack_layer(self, diff_id: str, stream: IO[bytes]) -> PackedLayer:
        kept = self._kept(diff_id)
        if kept.is_file():
            known = read_document(kept, PackedLayer, LAYER_SCHEMA)
            if self._has_blob(known.digest):
                return known
        self._on_step(f"packing layer {diff_id[7:19]}")
        with BlobWriter(self._scratch, self._compression) as writer:
            contents, ordered = _scan_and_copy(stream, writer)
            blob = writer.finish()
        if not ordered:
            blob = self._put_in_order(blob)
        packed = PackedLayer(
            schema=LAYER_SCHEMA,
            diff_id=blob.diff_id,
            digest=blob.digest,
            size_bytes=blob.size_bytes,
            contents=contents,
            compression=self._compression,
        )
        self._on_step(f"uploading layer {diff_id[7:19]}, {blob.size_bytes / 1e6:.1f} MB")
        try:
            self._upload(blob.digest, blob.path)
        finally:
            blob.path.unlink()
        for name in {diff_id, blob.diff_id}:
            write_json(self._kept(name), packed)
        return packed

    def _put_in_order(self, blob: LayerBlob) -> LayerBlob:
        with tempfile.TemporaryFile(dir=self._scratch) as plain:
            with unpack(blob.path) as stream:
                shutil.copyfileobj(stream, plain, _READ_BYTES)
            blob.path.unlink()
            with BlobWriter(self._scratch, self._compression) as writer:
                write_in_order(plain, writer.feed)
                return writer.finish()

    def _kept(self, diff_id: str) -> Path:
        return self._memory / f"{diff_id.removeprefix('sha256:')}.{self._compression}.json"


class _Tee(io.RawIOBase):
    """Hands on what is read of a layer to its compressor."""

    def __init__(self, stream: IO[bytes], writer: BlobWriter) -> None:
        self._stream, self._writer = stream, writer

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self._writer.feed(data)
        return data


def _scan_and_copy(stream: IO[bytes], writer: BlobWriter) -> tuple[LayerContents, bool]:
    """What the layer holds, and whether its files stand in order."""
    tee = cast(IO[bytes], _Tee(stream, writer))
    current: list[tarfile.TarFile] = []
    found: list[tuple[str, bool]] = []

    def members() -> Iterator[tarfile.TarInfo]:
        for tar, member in read_members(tee):
            current[:] = [tar]
            found.append((member.name, member.islnk()))
            yield member

    contents = scan_layer(members(), lambda member: cast(IO[bytes], current[0].extractfile(member)).read())
    while tee.read(_READ_BYTES):
        pass  # what follows the end of the tar belongs to the layer
    return contents, stands_in_order(found)


def _assemble(listed: Mapping[str, Any], layers: Mapping[str, PackedLayer], files: Mapping[str, bytes]) -> PackedImage:
    config = files[listed["Config"]]
    described = json.loads(config)
    mine = tuple(layers[name] for name in listed["Layers"])
    for name, layer, diff_id in zip(listed["Layers"], mine, described["rootfs"]["diff_ids"], strict=True):
        if diff_id not in (layer.diff_id, f"sha256:{name.rpartition('/')[2]}"):
            raise ValueError("layers that are not those of the configuration")
        config = config.replace(diff_id.encode(), layer.diff_id.encode())
    python, system = merge_contents(layer.contents for layer in mine)
    return PackedImage(
        tags=tuple(listed["RepoTags"]),
        config=config,
        layers=mine,
        platform="/".join(
            part for part in (described["os"], described["architecture"], described.get("variant")) if part
        ),
        labels=dict(described.get("config", {}).get("Labels") or {}),
        python=python,
        system=system,
    )
