"""What does the engine hold of some images? The archive that `docker save` writes, read as it comes.

In: tags. Out: its files, in its order, without a copy on the disk. Images that share layers are saved together, each
layer once. A layer is itself a tar, whose members are read the same way.
"""

from __future__ import annotations

import io
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, cast

from nightjar_ci.images.process import ENGINE_HINT, ToolError

_READ_BYTES = 2**20
_NO_LAYERS = (".json", "repositories", "VERSION", "oci-layout")


@dataclass(frozen=True, slots=True)
class ArchiveFile:
    """One file of an archive: a layer, or a document. It can be read until the next one is taken."""

    name: str
    is_layer: bool
    stream: IO[bytes]


@contextmanager
def save_images(tags: Sequence[str]) -> Iterator[Iterator[ArchiveFile]]:
    """The files of the archive of some images.

    Raises:
        ToolError: the engine has no such image, or does not answer.
    """
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
            said = cast(IO[bytes], process.stderr).read().decode(errors="replace").strip()
            raise ToolError(f"`{' '.join(argv)}` failed: {said or 'its archive is truncated'}.", ENGINE_HINT) from None
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
    """The members of a layer; the bytes of each can be read from the tar until the next one is taken."""
    with tarfile.open(fileobj=layer, mode="r|", bufsize=_READ_BYTES) as tar:
        for member in tar:
            yield tar, member
