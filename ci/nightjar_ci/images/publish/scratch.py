"""Scratch folders for blobs, removed at the end, and by the next run after a kill.

In: a prefix. Out: a folder that only this process uses. A lock on a file in it tells a folder in use from one that a
killed process left; the next folder of this prefix removes the latter.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_LOCK = ".lock"


@contextmanager
def open_scratch(prefix: str) -> Iterator[Path]:
    """A new scratch folder, after the removal of those that killed processes of this user left."""
    _sweep(prefix)
    while True:
        temporary = tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True)
        with temporary as folder, Path(folder, _LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if Path(folder, _LOCK).exists():  # else another process swept the folder just before the lock
                yield Path(folder)
                return


def _sweep(prefix: str) -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        try:
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
            with (folder / _LOCK).open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue  # in use, or not a folder of ours
