"""The lock of the folder of a night or a bisection: only one process writes it.

In: a folder. Out: a context in which no other process runs jobs there. The lock ends with its process.

Source: flock(2).
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nightjar_ci.errors import InputError, NightjarError

LOCK = "night.lock"
_NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK)  # Lustre without -o flock, for one


@contextmanager
def hold_folder(folder: Path) -> Iterator[None]:
    """Locks a folder; prints a warning if its file system has no locks."""
    try:
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    except FileNotFoundError:
        raise InputError(f"{folder}: no such folder.") from None
    except OSError as error:
        raise NightjarError(
            f"{folder} cannot be written: {error}.", "check free space and that you own the folder"
        ) from None
    try:
        _lock(descriptor, folder)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 200, 0).decode(errors="replace").strip() or "another process"
        raise NightjarError(f"{folder} is being written by {holder}.", "wait for it, or stop it") from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise NightjarError(f"{folder / LOCK} cannot be locked: {error}.") from None
        print(f"warning: {folder}: this file system has no locks: do not start a second run of it", file=sys.stderr)
        return
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
    except OSError:  # a full disk: the lock holds anyway
        pass
