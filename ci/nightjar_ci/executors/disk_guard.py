"""The end of a job that fills the disk of its folder, before the other jobs of the night find it full.

In: a job's folder, checked while the job runs and when it has ended. Out: `FilledDiskError` if the disk has almost no
room left and the job's own files took it. They are then removed, except its logs: a job that filled the disk left no
usable result, and its files would stop all later jobs.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from nightjar_ci.executors.process import STDERR, STDOUT

RESERVE_BYTES = 256 << 20  # for results, logs and the store of the other jobs
_RESERVE_SHARE = 0.1  # of the free space when the job starts: a small disk has no 256 MiB to spare
_INTERVAL_S = 0.5


class FilledDiskError(Exception):
    """A job used up the disk; its message says how."""


class DiskGuard:
    """Guards the disk while a job runs."""

    def __init__(self, folder: Path) -> None:
        """Args: folder: of the job, on the disk that is looked after."""
        self.folder = folder
        self.reserve_bytes = min(RESERVE_BYTES, int(_read_free(folder) * _RESERVE_SHARE))
        self._next_s = 0.0

    def poll(self) -> None:
        """Looks, unless it did so a moment ago."""
        if time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + _INTERVAL_S
            self.check()

    def check(self) -> None:
        free = _read_free(self.folder)
        if free >= self.reserve_bytes:
            return
        used = sum(_measure_files(self.folder))
        if used > self.reserve_bytes:
            raise FilledDiskError(
                f"it wrote {_render(used)} into its folder, and the disk has {_render(free)} left. "
                "Its files were removed, except its logs"
            )

    def free(self) -> None:
        """Removes the job's files, except its logs."""
        for path in self.folder.iterdir():
            if path.name in (STDOUT, STDERR):
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def _read_free(folder: Path) -> int:
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def _measure_files(folder: Path) -> Iterator[int]:
    """The bytes on disk of each file; vanished ones are left out."""
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                yield Path(parent, name).lstat().st_blocks * 512
            except OSError:
                continue


def _render(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 20):,.1f} MiB"
