"""The border at the end of a job: from here on others read, publish and upload its output folder.

In: the folder. Out: the same folder, with nothing in it but files, folders and links that stay inside of it, in bounded
number and size; and the names of all that was removed. An upload follows links, and a reader waits at a FIFO.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from nightjar_ci.untrusted.files import name_kind

MOST_FILES = 100_000  # of a job; the largest captures of ours have hundreds
MOST_BYTES = 256 << 30  # of a job, as a reader sees them: a sparse file takes no space on disk
_MOST_NAMED = 5


def clean_output(folder: Path, most_files: int = MOST_FILES, most_bytes: int = MOST_BYTES) -> str | None:
    """Removes what must not leave a job's folder; returns what that was, in words."""
    removed: list[str] = []
    root = os.path.realpath(folder.parent / folder.name)
    if folder.is_symlink():
        folder.unlink()
        folder.mkdir()
        removed.append("the folder itself, a link")
    files, size_bytes = 0, 0
    for parent, folders, names in os.walk(folder):
        for name in sorted([*names, *folders]):
            path = Path(parent, name)
            try:
                status = path.lstat()
                if stat.S_ISDIR(status.st_mode):
                    continue
                files, size_bytes = files + 1, size_bytes + status.st_size
                why = _why_not(path, status.st_mode, root)
                if why is None and (files > most_files or size_bytes > most_bytes):
                    why = f"beyond {most_files:,} files or {most_bytes / 2**30:,.3g} GiB"
                    files, size_bytes = files - 1, size_bytes - status.st_size
                if why is not None:
                    path.unlink()
                    removed.append(f"{ascii(str(path.relative_to(folder)))[:200]} ({why})")
            except OSError:  # vanished, or not ours to remove
                continue
    if not removed:
        return None
    more = f" and {len(removed) - _MOST_NAMED:,} more" if len(removed) > _MOST_NAMED else ""
    return f"removed from its output folder: {', '.join(removed[:_MOST_NAMED])}{more}"


def _why_not(path: Path, mode: int, root: str) -> str | None:
    """Why a file does not stay; None if it does."""
    if stat.S_ISLNK(mode):
        real = os.path.realpath(path)
        return None if real == root or real.startswith(root + os.sep) else "a symbolic link out of it"
    return None if stat.S_ISREG(mode) else name_kind(mode)
