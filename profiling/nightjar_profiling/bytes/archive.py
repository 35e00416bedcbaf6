"""How are the files of an archive read when whoever made it may mean harm?

In: a zip file, or the folder that it was extracted to. Out: names and bytes. Nothing is ever extracted to disk. A name
that climbs out of the archive, an archive that holds more than a limit, and a file that holds more than it declares are
refused.
"""

from __future__ import annotations

import lzma
import struct
import zipfile
import zlib
from pathlib import Path, PurePosixPath

from nightjar_profiling.errors import InputError

# What zipfile and its decoders raise of damaged bytes.
UNREADABLE = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError),
    *(RuntimeError, NotImplementedError, ValueError, OSError),
)
LARGEST_BYTES = 32 << 30  # of all files that are read, decompressed
# Of one file. Zeros are packed 1,029 times smaller; of the real archives HLO, were it not in xz, 14 times at most.
LARGEST_RATIO, FREE_BYTES = 100, 64 << 20
DAMAGED = "the file is truncated or damaged: copy or make it again"


class Archive:
    """The files of a zip file or folder."""

    def __init__(self, path: Path, largest_bytes: int = LARGEST_BYTES) -> None:
        """Opens it.

        Raises:
            InputError: missing, not a zip file, or a name in it climbs out.
        """
        self.path = path
        self.left_bytes = largest_bytes
        self._zip: zipfile.ZipFile | None = None
        if path.is_dir():
            self.names = sorted(p.relative_to(path).as_posix() for p in path.rglob("*") if p.is_file())
        else:
            self._zip = self._open()
            self.names = sorted(one.filename for one in self._zip.infolist() if not f"/{one.filename}".endswith("/"))
        for name in self.names:
            pure = PurePosixPath(name)
            if pure.is_absolute() or ".." in pure.parts or "\\" in name:
                raise InputError(
                    f"{path}: holds a file named {name!r}, outside of itself.", "do not trust this archive"
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
        """Names of the files below a folder."""
        return [name for name in self.names if name.startswith(f"{folder}/")]

    def read(self, name: str) -> bytes:
        """The bytes of a file.

        Raises:
            InputError: damaged, encrypted, or too large.
        """
        if self._zip is None:
            return (self.path / name).read_bytes()
        try:
            member = self._zip.getinfo(name)
            declared = member.file_size
            if declared > self.left_bytes:
                raise self._too_large(name, declared)
            if declared > FREE_BYTES + LARGEST_RATIO * member.compress_size:
                what = f"{name} in it is packed into {member.compress_size} bytes and has {declared}"
                raise InputError(f"{self.path}: {what}, over {LARGEST_RATIO} times as many.", "is it a zip bomb?")
            with self._zip.open(name) as file:
                data = file.read(self.left_bytes + 1)  # what is declared may be a lie
        except UNREADABLE as error:
            raise InputError(f"{self.path}: {name} in it cannot be read: {error}.", DAMAGED) from None
        if len(data) > self.left_bytes:
            raise self._too_large(name, len(data))
        self.left_bytes -= len(data)
        return data

    def _too_large(self, name: str, size: int) -> InputError:
        left = f"{self.left_bytes} of the bytes that are read of an archive are left"
        return InputError(f"{self.path}: {name} in it has {size} bytes or more, but {left}.", "is it a zip bomb?")
