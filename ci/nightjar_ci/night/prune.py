"""Removal of old nights, bisections and environments from the state folder.

In: `$NIGHTJAR_STATE_DIR` and a number of days. Out: the nights, bisections and uv environments that nothing has used
for that long, with the disk space that each frees. What the store has of a night stays: later nights are compared with
its measures for as long as a policy looks back.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from nightjar_ci.environments.uv import STAMP
from nightjar_ci.errors import NightjarError
from nightjar_ci.settings import Settings

HINT = "is it another user's? what a container wrote may be root's"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unused:
    """A folder that nothing used for a while.

    Attributes:
        path: the folder.
        last_used: when an environment was last asked for, or anything else last written.
        size_bytes: what comes back; files with a second name elsewhere, such as in uv's cache, do not.
    """

    path: Path
    last_used: datetime
    size_bytes: int


def find_unused(
    settings: Settings, keep_days: int, now: datetime, on_folder: Callable[[Path], None] | None = None
) -> list[Unused]:
    """The folders that were last used more than so many days ago, oldest first.

    Args:
        settings: where they are.
        keep_days: what was used within so many days stays.
        now: the time, with a zone.
        on_folder: called with each folder before it is measured.
    """
    found = []
    for kept in (settings.nights_dir, settings.baseline_nights_dir, settings.bisections_dir, settings.environments_dir):
        for path in sorted(kept.iterdir()) if kept.is_dir() else ():
            if path.is_symlink() or not path.is_dir():
                continue
            if on_folder is not None:
                on_folder(path)
            try:
                files = list(_walk(path))
            except OSError as error:
                raise NightjarError(f"{path}: cannot be read: {error}.", HINT) from None
            stamp = path / STAMP
            last_used = _written(stamp.stat()) if stamp.is_file() else max(map(_written, files))
            if now - last_used > timedelta(days=keep_days):
                size = sum(one.st_blocks * 512 for one in files if stat.S_ISDIR(one.st_mode) or one.st_nlink == 1)
                found.append(Unused(path=path, last_used=last_used, size_bytes=size))
    return sorted(found, key=lambda one: one.last_used)


def delete(unused: Unused) -> bool:
    """Deletes a folder, unless it is an environment that was asked for since, or that a process is making.

    Returns:
        Whether it is gone.

    Raises:
        NightjarError: a file in it cannot be deleted.
    """
    lock, stamp = unused.path.with_suffix(".lock"), unused.path / STAMP
    try:
        with lock.open("a") if lock.is_file() else nullcontext() as file:  # it stays: others may wait for it
            if file is not None:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if stamp.is_file() and _written(stamp.stat()) > unused.last_used:
                return False
            stamp.unlink(missing_ok=True)  # first: what is left of an environment after a kill is none
            shutil.rmtree(unused.path)
    except BlockingIOError:
        return False
    except OSError as error:
        raise NightjarError(f"{unused.path}: cannot be deleted: {error}.", HINT) from None
    return True


def _written(entry: os.stat_result) -> datetime:
    return datetime.fromtimestamp(entry.st_mtime, UTC)


def _walk(folder: Path) -> Iterator[os.stat_result]:
    """The folder and all that is in it, but what a running job removes meanwhile; links are not followed."""
    yield folder.lstat()
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                if entry.is_dir(follow_symlinks=False):
                    yield from _walk(Path(entry))
                else:
                    yield entry.stat(follow_symlinks=False)
