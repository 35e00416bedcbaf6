"""Safe reading of untrusted archives.

In: a zip file, or the folder that it was extracted to. Out: names and bytes. Nothing is extracted to disk. It refuses
names outside of the archive, archives larger than a limit, and files larger than they declare.
"""

from __future__ import annotations

import lzma
import struct
import zipfile
import zlib
from pathlib import Path, PurePosixPath

from nightjar_profiling.errors import InputError

# Raised by zipfile and its decoders for damaged bytes.
UNREADABLE = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError),
    *(RuntimeError, NotImplementedError, ValueError, OSError),
)
LARGEST_BYTES = 32 << 30  # decompressed, over all files that are read
# Per file. Zeros compress 1,029-fold; the files of real archives at most 14-fold (HLO without xz).
LARGEST_RATIO, FREE_BYTES = 100, 64 << 20
ZIP_BOMB = "this may be a zip bomb: check where the file comes from"
DAMAGED = "the file is truncated or damaged: copy it again, or create it again"


class Archive:
    """The files of a zip file or folder."""

    def __init__(self, path: Path, largest_bytes: int = LARGEST_BYTES) -> None:
        """Opens the archive."""
        self.path = path
        self.left_bytes = largest_bytes
        self._zip: zipfile.ZipFile | None = None
        if path.is_dir():
            self.names = sorted(p.relative_to(path).as_posix() for p in path.rglob("*") if p.is_file())
        else:
            self._zip = self._open()
            self.names = sorted(name for name in self._zip.namelist() if not f"/{name}".endswith("/"))
        for name in self.names:
            pure = PurePosixPath(name)
            if pure.is_absolute() or ".." in pure.parts or "\\" in name:
                raise InputError(
                    f"{path}: contains a path outside of the archive: {name!r}.", "do not trust this archive"
                )

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._zip is not None:
            self._zip.close()

    def _open(self) -> zipfile.ZipFile:
        try:
            return zipfile.ZipFile(self.path)
        except (FileNotFoundError, PermissionError) as error:
            raise InputError(f"{self.path}: cannot be read: {error.strerror}.") from None
        except UNREADABLE as error:
            size = self.path.stat().st_size
            raise InputError(f"{self.path}: not a zip file ({size} bytes): {error}.", DAMAGED) from None

    def below(self, folder: str) -> list[str]:
        """Names of the files in a folder and its subfolders."""
        return [name for name in self.names if name.startswith(f"{folder}/")]

    def read(self, name: str) -> bytes:
        """The bytes of a file."""
        if self._zip is None:
            return (self.path / name).read_bytes()
        try:
            member = self._zip.getinfo(name)
            declared = member.file_size
            if declared > self.left_bytes:
                raise self._too_large(name, declared)
            if declared > FREE_BYTES + LARGEST_RATIO * member.compress_size:
                size = f"{member.compress_size} bytes compressed and {declared} decompressed"
                limit = f"a ratio above the limit of {LARGEST_RATIO}"
                raise InputError(f"{self.path}: {name} has {size}, {limit}.", ZIP_BOMB)
            with self._zip.open(name) as file:
                data = file.read(self.left_bytes + 1)  # the declared size may be wrong
        except UNREADABLE as error:
            raise InputError(f"{self.path}: {name} in it cannot be read: {error}.", DAMAGED) from None
        if len(data) > self.left_bytes:
            raise self._too_large(name, len(data))
        self.left_bytes -= len(data)
        return data

    def _too_large(self, name: str, size: int) -> InputError:
        limit = f"over the {self.left_bytes} bytes that remain of the limit for one archive"
        return InputError(f"{self.path}: {name} has at least {size} bytes, {limit}.", ZIP_BOMB)
