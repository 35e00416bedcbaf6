"""How does a layer become a compressed blob whose bytes depend on nothing but the layer? Chunks of gzip, side by
side.

In: the bytes of a layer, as they come. Out: a file of gzip members (RFC 1952, 2.2: a file may hold several), each of
one chunk, without name or time, and the digests of both. The chunk is fixed, so the bytes are the same on any number
of cores; what they still depend on is zlib's version.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

CHUNK_BYTES = 4 * 2**20
LEVEL = 6
_GZIP = 31  # zlib's window bits for a gzip wrapper, which it writes without name and with time 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GzipBlob:
    """A compressed layer: `diff_id` is the digest of what was compressed."""

    diff_id: str
    digest: str
    size_bytes: int
    path: Path


class GzipWriter:
    """Compresses what it is fed into a file of a folder; use it as a context manager.

    >>> import gzip, tempfile
    >>> with tempfile.TemporaryDirectory() as folder, GzipWriter(Path(folder)) as writer:
    ...     writer.feed(b"layer")
    ...     gzip.decompress(writer.finish().path.read_bytes())
    b'layer'
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._plain, self._packed, self._size = hashlib.sha256(), hashlib.sha256(), 0
        self._rest = bytearray()
        self._waiting: deque[Future[bytes]] = deque()
        self._workers = os.cpu_count() or 1
        self._pool = ThreadPoolExecutor(self._workers)  # zlib lets go of Python's lock
        self._unfinished = folder / f".{os.getpid()}.gz"
        self._file = self._unfinished.open("wb")

    def __enter__(self) -> GzipWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._file.close()
        self._unfinished.unlink(missing_ok=True)

    def feed(self, data: bytes) -> None:
        """Takes the next bytes of the layer.

        Raises:
            OSError: the disk is full.
        """
        self._plain.update(data)
        self._rest += data
        while len(self._rest) >= CHUNK_BYTES:
            self._submit(bytes(self._rest[:CHUNK_BYTES]))
            del self._rest[:CHUNK_BYTES]

    def finish(self) -> GzipBlob:
        """The blob, in a file named after its digest, which is the caller's to remove.

        Raises:
            OSError: the disk is full.
        """
        self._submit(bytes(self._rest))
        while self._waiting:
            self._write(self._waiting.popleft().result())
        self._file.close()
        digest = self._packed.hexdigest()
        path = self._unfinished.rename(self._folder / digest)
        return GzipBlob(
            diff_id=f"sha256:{self._plain.hexdigest()}", digest=f"sha256:{digest}", size_bytes=self._size, path=path
        )

    def _submit(self, chunk: bytes) -> None:
        self._waiting.append(self._pool.submit(zlib.compress, chunk, LEVEL, _GZIP))
        if len(self._waiting) > 2 * self._workers:  # so much memory, and no more
            self._write(self._waiting.popleft().result())

    def _write(self, packed: bytes) -> None:
        self._packed.update(packed)
        self._size += len(packed)
        self._file.write(packed)
