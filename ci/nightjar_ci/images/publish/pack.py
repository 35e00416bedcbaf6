"""Engine images, packed for a push: compressed layers, configuration and manifest.

In: tags of images, and a cache of packed layers. Out: for each image an OCI manifest, its blobs and its packages.
Images that share layers are saved together. Each layer is packed only once: the cache has the digest of its blob, and
blobs that the registry has are not uploaded again. Docker's overlay2 driver writes the files of a layer in one of two
orders, at random: it walks the folders, or it sorts all paths as strings, so that `a.h` comes between `a` and `a/b`. So
that one lock gives one digest, they are sorted folder by folder, and the configuration gets the new digest.

Source: OCI image-spec manifest.md, config.md, descriptor.md. `docker save` since 25.0 writes an OCI layout. The orders:
moby, daemon/graphdriver/overlay2 (Diff) and pkg/archive/changes.go (ExportChanges).
"""

from __future__ import annotations

import gzip
import io
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, cast

from nightjar_ci.errors import NightjarError
from nightjar_ci.formats.documents import StrictModel, read_document, write_json
from nightjar_ci.images.content.contents import LayerContents, Origin, merge_contents, merge_details, scan_layer
from nightjar_ci.images.publish.layer_blob import DEFAULT, BlobWriter, Compression, LayerBlob, zstd
from nightjar_ci.images.publish.manifests import render_manifest
from nightjar_ci.images.tree import ENGINE_HINT
from nightjar_ci.tools import ToolError
from nightjar_ci.web.registry import MANIFEST_TYPE, digest_of

CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar+"  # and the compression
_READ_BYTES = 2**22
_GZIP = b"\x1f\x8b"
_NO_LAYERS = (".json", "repositories", "VERSION", "oci-layout")


class PackedLayer(StrictModel):
    """A packed layer, cached by its name in an archive and by compression; `unsorted`: the engine's `diff_id`."""

    diff_id: str
    digest: str
    size_bytes: int
    contents: LayerContents
    compression: Compression
    unsorted: str | None = None

    @property
    def descriptor(self) -> dict[str, str | int]:
        return {"mediaType": LAYER_TYPE + self.compression, "digest": self.digest, "size": self.size_bytes}


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedImage:
    """An image, ready to be pushed.

    Attributes:
        config: the configuration, with the digests of sorted layers.
        python, system: packages, name to version.
        release: fields of `os-release`.
    """

    tags: tuple[str, ...]
    config: bytes
    layers: tuple[PackedLayer, ...]
    platform: str
    labels: dict[str, str]
    python: dict[str, str]
    system: dict[str, str]
    origins: Mapping[str, Origin] = field(default_factory=dict)
    licences: Mapping[str, str] = field(default_factory=dict)
    release: Mapping[str, str] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """The digest of the configuration: the engine's id unless a layer was sorted."""
        return digest_of(self.config)

    @property
    def manifest(self) -> bytes:
        """The OCI manifest; it does not depend on time and place of the push."""
        return render_manifest(
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST_TYPE,
                "config": {"mediaType": CONFIG_TYPE, "digest": digest_of(self.config), "size": len(self.config)},
                "layers": [layer.descriptor for layer in self.layers],
            }
        )


class Packer:
    """A packer of images; each blob is a file until `upload` returns.

    Args:
        scratch: folder for compressed layers.
        layer_cache: folder of packed layers, from earlier runs.
        upload: called with a blob's digest and file.
    """

    def __init__(
        self,
        scratch: Path,
        layer_cache: Path,
        has_blob: Callable[[str], bool],
        upload: Callable[[str, Path], object],
        on_step: Callable[[str], None],
        compression: Compression = DEFAULT,
    ) -> None:
        self._scratch, self._layer_cache, self._compression = scratch, layer_cache, compression
        self._has_blob, self._upload, self._on_step = has_blob, upload, on_step

    def pack(self, tags: Sequence[str]) -> dict[str, PackedImage]:
        """Packs images and uploads the layers that the registry lacks."""
        layers: dict[str, PackedLayer] = {}
        documents: dict[str, bytes] = {}
        with save_images(tags) as files:
            for file in files:
                if file.is_layer:
                    layers[file.name] = self._pack_layer(f"sha256:{file.name.rpartition('/')[2]}", file.stream)
                else:
                    documents[file.name] = file.stream.read()
        try:
            entries = json.loads(documents["manifest.json"])
            images = [_assemble(entry, layers, documents) for entry in entries]
            return {tag: image for image in images for tag in image.tags if tag in tags}
        except (KeyError, ValueError, TypeError) as error:
            reason = f"{type(error).__name__} {error}"
            raise NightjarError(f"the output of `docker save` is not an image archive: {reason}.") from None

    def _pack_layer(self, diff_id: str, stream: IO[bytes]) -> PackedLayer:
        path = self._cache_path(diff_id)
        if path.is_file():
            cached = read_document(path, PackedLayer)
            if self._has_blob(cached.digest):
                return cached
        self._on_step(f"packing layer {diff_id[7:19]}")
        with BlobWriter(self._scratch, self._compression) as writer:
            contents, ordered = _scan_and_copy(stream, writer)
            blob = writer.finish()
        unsorted = blob.diff_id
        if not ordered:
            blob = self._sort(blob)
        packed = PackedLayer(
            diff_id=blob.diff_id,
            digest=blob.digest,
            size_bytes=blob.size_bytes,
            contents=contents,
            compression=self._compression,
            unsorted=unsorted,
        )
        self._on_step(f"uploading layer {diff_id[7:19]}, {blob.size_bytes / 1e6:.1f} MB")
        try:
            self._upload(blob.digest, blob.path)
        finally:
            blob.path.unlink()
        for name in dict.fromkeys((blob.diff_id, diff_id)):  # last the one that the next push asks for
            write_json(self._cache_path(name), packed)
        return packed

    def _sort(self, blob: LayerBlob) -> LayerBlob:
        with tempfile.TemporaryFile(dir=self._scratch) as plain:
            with unpack(blob.path, self._compression) as stream:
                shutil.copyfileobj(stream, plain, _READ_BYTES)
            blob.path.unlink()
            with BlobWriter(self._scratch, self._compression) as writer:
                write_ordered(plain, writer.feed)
                return writer.finish()

    def _cache_path(self, diff_id: str) -> Path:
        return self._layer_cache / f"{diff_id.removeprefix('sha256:')}.{self._compression}.licences.json"


def unpack(path: Path, compression: Compression) -> IO[bytes]:
    if compression == "gzip":
        return cast(IO[bytes], gzip.open(path))
    return cast(IO[bytes], zstd.open(path))


class _Tee(io.RawIOBase):
    """A stream that feeds every byte read from a layer to its compressor."""

    def __init__(self, stream: IO[bytes], writer: BlobWriter) -> None:
        self._stream, self._writer = stream, writer

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self._writer.feed(data)
        return data


def _scan_and_copy(stream: IO[bytes], writer: BlobWriter) -> tuple[LayerContents, bool]:
    tee = cast(IO[bytes], _Tee(stream, writer))
    names: list[tuple[str, bool]] = []

    def members() -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
        for tar, member in read_members(tee):
            names.append((member.name, member.islnk()))
            yield tar, member

    contents = scan_layer(members())
    while tee.read(_READ_BYTES):
        pass  # the bytes after the end of the tar belong to the layer
    return contents, is_ordered(names)


def _assemble(entry: Mapping[str, Any], packed: Mapping[str, PackedLayer], files: Mapping[str, bytes]) -> PackedImage:
    config = files[entry["Config"]]
    described = json.loads(config)
    layers = tuple(packed[name] for name in entry["Layers"])
    for name, layer, diff_id in zip(entry["Layers"], layers, described["rootfs"]["diff_ids"], strict=True):
        if diff_id not in (layer.diff_id, layer.unsorted, f"sha256:{name.rpartition('/')[2]}"):
            raise ValueError("the layers are not those of the configuration")
        config = config.replace(diff_id.encode(), layer.diff_id.encode())
    contents = [layer.contents for layer in layers]
    python, system = merge_contents(contents)
    origins, licences, release = merge_details(contents)
    return PackedImage(
        tags=tuple(entry["RepoTags"]),
        config=config,
        layers=layers,
        platform="/".join(
            part for part in (described["os"], described["architecture"], described.get("variant")) if part
        ),
        labels=dict(described.get("config", {}).get("Labels") or {}),
        python=python,
        system=system,
        origins=origins,
        licences=licences,
        release=release,
    )


def is_ordered(members: Sequence[tuple[str, bool]]) -> bool:
    """Whether the entries of a layer need no sorting.

    Args:
        members: name of each, and whether it is a hard link. A hard link must follow its target, so that a layer with
            one is never sorted.

    >>> is_ordered([("a", False), ("a/b", False), ("a.h", False)])
    True
    >>> is_ordered([("a", False), ("a.h", False), ("a/b", False)])
    False
    """
    keys = [_sort_key(name) for name, _ in members]
    return any(linked for _, linked in members) or all(key <= following for key, following in pairwise(keys))


def write_ordered(layer: IO[bytes], feed: Callable[[bytes], object]) -> None:
    """Writes the entries of a layer in the fixed order, then the bytes after the last one."""
    layer.seek(0)
    with tarfile.open(fileobj=layer, mode="r:") as tar:
        members = tar.getmembers()
        end = tar.offset
    starts = [member.offset for member in members]
    spans = dict(zip(starts, [*starts[1:], end], strict=True))
    for member in sorted(members, key=lambda member: _sort_key(member.name)):
        _copy(layer, member.offset, spans[member.offset] - member.offset, feed)
    _copy(layer, end, sys.maxsize, feed)


def _sort_key(name: str) -> list[str]:
    return name.rstrip("/").split("/")


def _copy(layer: IO[bytes], start: int, size_bytes: int, feed: Callable[[bytes], object]) -> None:
    layer.seek(start)
    while data := layer.read(min(size_bytes, _READ_BYTES)):
        feed(data)
        size_bytes -= len(data)


@dataclass(frozen=True, slots=True)
class ArchiveFile:
    """A layer or document of an archive; read it before you take the next file."""

    name: str
    is_layer: bool
    stream: IO[bytes]


@contextmanager
def save_images(tags: Sequence[str]) -> Iterator[Iterator[ArchiveFile]]:
    """The files of the archive of `docker save`, in its order, without a copy on disk."""
    argv = ["docker", "save", *tags]
    try:
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    except OSError as error:
        raise ToolError(f"`docker save` could not be started: {error.strerror}.", ENGINE_HINT) from None
    with process:
        try:
            yield _read_files(cast(IO[bytes], process.stdout))
        except tarfile.ReadError:
            process.kill()
            output = cast(IO[bytes], process.stderr).read().decode(errors="replace").strip()
            reason = output or "its archive is truncated"
            raise ToolError(f"`{' '.join(argv)}` failed: {reason}.", ENGINE_HINT) from None
        except BaseException:
            process.kill()
            raise


def _read_files(stream: IO[bytes]) -> Iterator[ArchiveFile]:
    with tarfile.open(fileobj=stream, mode="r|", bufsize=_READ_BYTES) as archive:
        for member in archive:
            if member.isfile():
                file = io.BufferedReader(cast(io.RawIOBase, archive.extractfile(member)), _READ_BYTES)
                if file.peek(2)[:2] == _GZIP:  # of an engine with containerd's image store
                    file = io.BufferedReader(cast(io.RawIOBase, gzip.GzipFile(fileobj=file)), _READ_BYTES)
                document = member.name.endswith(_NO_LAYERS) or file.peek(1)[:1] == b"{"
                yield ArchiveFile(member.name, not document, file)


def read_members(layer: IO[bytes]) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
    """The members of a layer, each with its tar; read a member's content before you take the next one."""
    with tarfile.open(fileobj=layer, mode="r|", bufsize=_READ_BYTES) as tar:
        for member in tar:
            yield tar, member
