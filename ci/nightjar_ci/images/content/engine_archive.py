"""The archive of `docker save`, read as a stream.

In: tags. Out: the files of the archive, in archive order, without a copy on disk. Images that share layers are saved
together, each layer once. A layer is a tar, too; its members are read the same way.
"""

from __future__ import annotations

import io
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, cast

from nightjar_ci.images.tree import ENGINE_HINT
from nightjar_ci.tools import ToolError

_READ_BYTES = 2**20
_NO_LAYERS = (".json", "repositories", "VERSION", "oci-layout")


@dataclass(frozen=True, slots=True)
class ArchiveFile:
    """A layer or document of an archive; read it before you take the next file."""

    name: str
    is_layer: bool
    stream: IO[bytes]


@contextmanager
def save_images(tags: Sequence[str]) -> Iterator[Iterator[ArchiveFile]]:
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
                document = member.name.endswith(_NO_LAYERS) or file.peek(1)[:1] == b"{"
                yield ArchiveFile(member.name, not document, file)


def read_members(layer: IO[bytes]) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
    """The members of a layer, each with its tar; read a member's content before you take the next one."""
    with tarfile.open(fileobj=layer, mode="r|", bufsize=_READ_BYTES) as tar:
        for member in tar:
            yield tar, member
