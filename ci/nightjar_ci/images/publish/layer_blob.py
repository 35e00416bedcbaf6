"""Reproducible layer compression: fixed chunks, compressed in parallel.

In: the bytes of a layer, as a stream. Out: a file of gzip members (RFC 1952, 2.2) or Zstandard frames (RFC 8878, 3.1),
one per chunk, without name or time, and the digests before and after. The chunk size is fixed, so that the bytes do not
depend on the number of cores; they do depend on the version of zlib or libzstd.
"""

from __future__ import annotations

import hashlib
import os
import sys
import zlib
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal

if sys.version_info >= (3, 14):  # before, its backport
    from compression import zstd as zstd
else:
    from backports import zstd as zstd

Compression = Literal["gzip", "zstd"]
DEFAULT: Compression = "zstd"
# a Zstandard frame cannot refer to earlier frames, so that large chunks compress better
CHUNK_BYTES = {"gzip": 4 * 2**20, "zstd": 64 * 2**20}
GZIP_LEVEL = 6
ZSTD_LEVEL = 9
_GZIP = 31  # zlib's window bits for a gzip wrapper without name and with time 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerBlob:
    """A compressed layer; `diff_id` is the digest of the uncompressed bytes."""

    diff_id: str
    digest: str
    size_bytes: int
    path: Path


def find_compressor(compression: Compression) -> Callable[[bytes], bytes]:
    if compression == "gzip":
        return lambda chunk: zlib.compress(chunk, GZIP_LEVEL, _GZIP)
    return lambda chunk: zstd.compress(chunk, ZSTD_LEVEL)


class BlobWriter:
    """A writer that compresses into a file of a folder; use it as a context manager.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, BlobWriter(Path(folder)) as writer:
    ...     writer.feed(b"layer")
    ...     zstd.decompress(writer.finish().path.read_bytes())
    b'layer'
    """

    def __init__(self, folder: Path, compression: Compression = DEFAULT) -> None:
        self._folder, self._compress = folder, find_compressor(compression)
        self._chunk_bytes = CHUNK_BYTES[compression]
        self._plain, self._packed, self._size = hashlib.sha256(), hashlib.sha256(), 0
        self._buffer = bytearray()
        self._pending: deque[Future[bytes]] = deque()
        self._workers = os.cpu_count() or 1
        self._pool = ThreadPoolExecutor(self._workers)  # zlib and libzstd release the GIL
        self._unfinished = folder / f".{os.getpid()}.unfinished"
        self._file = self._unfinished.open("wb")

    def __enter__(self) -> BlobWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._file.close()
        self._unfinished.unlink(missing_ok=True)

    def feed(self, data: bytes) -> None:
        self._plain.update(data)
        self._buffer += data
        while len(self._buffer) >= self._chunk_bytes:
            self._submit(bytes(self._buffer[: self._chunk_bytes]))
            del self._buffer[: self._chunk_bytes]

    def finish(self) -> LayerBlob:
        """The blob, in a file named after its digest; the caller removes it."""
        self._submit(bytes(self._buffer))
        while self._pending:
            self._write(self._pending.popleft().result())
        self._file.close()
        digest = self._packed.hexdigest()
        path = self._unfinished.rename(self._folder / digest)
        return LayerBlob(
            diff_id=f"sha256:{self._plain.hexdigest()}", digest=f"sha256:{digest}", size_bytes=self._size, path=path
        )

    def _submit(self, chunk: bytes) -> None:
        self._pending.append(self._pool.submit(self._compress, chunk))
        if len(self._pending) > 2 * self._workers:  # bounds memory
            self._write(self._pending.popleft().result())

    def _write(self, packed: bytes) -> None:
        self._packed.update(packed)
        self._size += len(packed)
        self._file.write(packed)
