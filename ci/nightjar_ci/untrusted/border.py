"""The border at the end of a job: from here on others read, publish and upload its output folder.

In: the folder. Out: the same folder, with nothing in it but files, folders and links that stay inside of it, in bounded
number and size, without known secrets; and the names of all that was removed. An upload follows links, and a reader
waits at a FIFO.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from nightjar_ci.untrusted.files import name_kind, walk_untrusted

MOST_FILES = 100_000  # of a job; the largest captures of ours have hundreds
MOST_BYTES = 256 << 30  # of a job, as a reader sees them: a sparse file takes no space on disk
REMOVED = "removed from its output folder"
_MOST_NAMED = 5
_CHUNK_BYTES = 16 << 20


def clean_output(
    folder: Path, most_files: int = MOST_FILES, most_bytes: int = MOST_BYTES, secrets: Sequence[str] = ()
) -> str | None:
    """Removes what must not leave a job's folder, files with one of these secrets too; returns what, in words."""
    removed: list[str] = []
    values = [value.encode() for value in secrets]
    files, size_bytes, root = 0, 0, folder.parent.resolve() / folder.name
    if folder.is_symlink():
        folder.unlink()
        folder.mkdir()
        removed.append("the folder itself, a symbolic link")
    with suppress(OSError):
        root.chmod(stat.S_IMODE(root.stat().st_mode) | stat.S_IRWXU)
    for parent, names in walk_untrusted(root):
        for path in (parent / name for name in sorted(names)):
            with suppress(OSError):  # vanished, or not ours to remove
                status = path.lstat()
                if stat.S_ISDIR(status.st_mode):
                    path.chmod(stat.S_IMODE(status.st_mode) | stat.S_IRWXU)  # else what is in it stays
                    continue
                why = _why_not(path, status.st_mode, root)
                if files >= most_files or size_bytes + status.st_size > most_bytes:
                    why = why or f"beyond {most_files:,} files or {most_bytes / 2**30:,.3g} GiB"
                if why is None and stat.S_ISREG(status.st_mode):
                    why = _find_secret(path, values)
                if why is None:
                    files, size_bytes = files + 1, size_bytes + status.st_size
                    continue
                path.unlink()
                removed.append(f"{ascii(str(path.relative_to(root)))[:200]} ({why})")
    if len(removed) > _MOST_NAMED:
        removed[_MOST_NAMED:] = [f"{len(removed) - _MOST_NAMED:,} more"]
    if not removed:
        return None
    return f"{REMOVED}: {', '.join(removed)}"


def _why_not(path: Path, mode: int, root: Path) -> str | None:
    if stat.S_ISREG(mode):
        return "it runs with the rights of its owner" if mode & (stat.S_ISUID | stat.S_ISGID) else None
    if not stat.S_ISLNK(mode):
        return name_kind(mode)
    if Path(os.path.realpath(path)).is_relative_to(root):
        return None
    return "a symbolic link out of it"


def _find_secret(path: Path, values: Sequence[bytes]) -> str | None:
    """Why a file does not stay if its name or its contents hold one of these values; holes are not read."""
    overlap, at = max(map(len, values), default=0), 0
    try:
        file = path.open("rb", buffering=0)
    except PermissionError:
        return "it cannot be read"
    with file, suppress(OSError):  # at the end, or in the hole before it
        data = os.fsencode(path.name)
        while values:
            if any(value in data for value in values):
                return "it held a secret of this machine"
            at = os.lseek(file.fileno(), at, os.SEEK_DATA)
            data = os.pread(file.fileno(), _CHUNK_BYTES + overlap, at)
            at += _CHUNK_BYTES
    return None
