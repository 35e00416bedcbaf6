"""Removal of old nights, bisections and environments from the state folder.

In: `$NIGHTJAR_STATE_DIR` and a number of days. Out: the nights, bisections and uv environments that were not used
for that long, with the disk space that each frees. The store keeps the measures of a removed night: later nights are
compared with them as far as a policy looks back.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from nightjar_ci.environments.uv import STAMP
from nightjar_ci.environments.worktree import remove_worktree
from nightjar_ci.errors import EnvironmentFailedError, NightjarError
from nightjar_ci.night.lock import LOCK, hold_folder
from nightjar_ci.settings import Settings
from nightjar_ci.tools import run_captured

HINT = "does it belong to another user? Files from a container may belong to root"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unused:
    """A folder that was not used for a while.

    Attributes:
        last_used: when an environment was last used, or anything else last written.
        size_bytes: the space that is freed; files with a hard link elsewhere, such as in uv's cache, free none.
    """

    path: Path
    last_used: datetime
    size_bytes: int


def find_unused(
    settings: Settings, keep_days: int, now: datetime, on_folder: Callable[[Path], None] | None = None
) -> list[Unused]:
    """The folders that were last used more than `keep_days` ago, oldest first.

    Args:
        keep_days: folders used within this number of days are kept.
        on_folder: called with each folder before it is measured.
    """
    unused = []
    for path in _list_folders(settings):
        if on_folder is not None:
            on_folder(path)
        try:
            folder = _measure(path)
        except OSError as error:
            print(f"warning: {path} is kept: it cannot be read: {error}. Hint: {HINT}", file=sys.stderr)
            continue
        if now - folder.last_used > timedelta(days=keep_days):
            unused.append(folder)
    return sorted(unused, key=lambda folder: folder.last_used)


def _list_folders(settings: Settings) -> Iterator[Path]:
    for root in (settings.nights_dir, settings.baseline_nights_dir, settings.bisections_dir, settings.environments_dir):
        if root.is_dir():
            yield from (path for path in sorted(root.iterdir()) if path.is_dir() and not path.is_symlink())


def _measure(path: Path) -> Unused:
    files = [path.lstat(), *_walk(path)]
    last_used = max(map(_written, files))
    if (path / STAMP).is_file():
        last_used = _written((path / STAMP).stat())
    size = sum(file.st_blocks * 512 for file in files if stat.S_ISDIR(file.st_mode) or file.st_nlink == 1)
    return Unused(path=path, last_used=last_used, size_bytes=size)


def delete(unused: Unused) -> bool:
    """Deletes a folder, unless it is an environment that was used since, or a process writes it; returns whether."""
    lock, stamp = unused.path.with_suffix(".lock"), unused.path / STAMP
    held = hold_folder(unused.path) if (unused.path / LOCK).is_file() else nullcontext()
    try:
        with held, lock.open("a") if lock.is_file() else nullcontext() as file:  # it stays: others may wait for it
            if file is not None:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if stamp.is_file() and _written(stamp.stat()) > unused.last_used:
                return False
            for link in unused.path.glob("stage*/*/tree/.git"):  # of a bisection that was interrupted
                with suppress(EnvironmentFailedError):
                    remove_worktree(link.parent)
            stamp.unlink(missing_ok=True)  # first: an environment that is partly deleted must not count as made
            try:
                shutil.rmtree(unused.path)
            except RecursionError:  # deep folders; like rmtree, rm follows no link that is put there meanwhile
                run_captured(["rm", "-rf", "--", str(unused.path)])
    except BlockingIOError:
        return False
    except NightjarError as error:
        print(f"warning: {error.message}", file=sys.stderr)
        return False
    except OSError as error:
        raise NightjarError(f"{unused.path}: cannot be deleted: {error}.", HINT) from None
    return True


def _written(entry: os.stat_result) -> datetime:
    return datetime.fromtimestamp(entry.st_mtime, UTC)


def _walk(folder: Path) -> Iterator[os.stat_result]:
    """Everything in a folder, except files that a running job removes meanwhile; links are not followed."""
    paths = list(folder.iterdir())
    for path in paths:  # which grows
        with suppress(FileNotFoundError):
            status = path.lstat()
            yield status
            if stat.S_ISDIR(status.st_mode):
                paths += path.iterdir()
