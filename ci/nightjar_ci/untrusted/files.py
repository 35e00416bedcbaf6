"""Safe reading of files that a job wrote.

In: a job's folder and a name below it. Out: the bytes of a regular file, or an `OSError` that says why it was not read.
No link is followed from the job's folder on: a job in a container sees other files than we do, and its links would be
resolved here. FIFOs, devices and sockets are not opened, so that nothing waits for a writer. Reading has a size limit
and a deadline, because the job may still be writing.

Source: openat(2) and open(2), O_NOFOLLOW and O_NONBLOCK.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path, PurePath
from typing import BinaryIO

MOST_BYTES = 64 * 2**20  # a result with a million steps has 30 MB
MOST_DATA_BYTES = 256 * 2**20  # of an adapter's input; its records take ten times as much memory
DEADLINE_S = 30.0
LEFT_OUT = b"[nightjar left out %20d bytes here]"  # as written by `executors/supervisor.py`
_LEFT_OUT_LINE = re.compile(r"^\[nightjar left out +(\d{1,20}) bytes here\]$", re.MULTILINE)
_END_BYTES = 8 * 2**20  # of a log, on either side
_CHUNK_BYTES = 2**20
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NEW_FILE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_KINDS = (
    (stat.S_ISLNK, "a symbolic link"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def walk_untrusted(folder: Path, onerror: Callable[[OSError], None] | None = None) -> Iterator[tuple[Path, list[str]]]:
    """Folders and the names in each, the highest first, however deep: `os.walk` is recursive before Python 3.12."""
    waiting = [folder]
    for parent in waiting:
        _, folders, names = next(os.walk(parent, onerror=onerror), ("", [], []))
        yield parent, [*names, *folders]
        waiting += [parent / name for name in folders if not os.path.islink(parent / name)]  # noqa: PTH114 - never raises


def open_untrusted(folder: Path, name: str | PurePath) -> BinaryIO:
    """Opens a regular file.

    Args:
        folder: the job's folder; it may not be a link itself.
        name: of the file, relative to `folder`.
    """
    parts = PurePath(name).parts
    if not parts or PurePath(name).is_absolute() or ".." in parts or "\0" in str(name):
        raise OSError(errno.EINVAL, f"{str(name)!r} is not a name below the job's folder")
    at = _open_folder(str(folder), None)
    try:
        for part in parts[:-1]:
            inner = _open_folder(part, at)
            os.close(at)
            at = inner
        _check_regular(os.stat(parts[-1], dir_fd=at, follow_symlinks=False))  # opening a device can change it
        descriptor = os.open(parts[-1], _FILE, dir_fd=at)
    finally:
        os.close(at)
    file = os.fdopen(descriptor, "rb")
    try:
        _check_regular(os.fstat(descriptor))
    except OSError:
        file.close()
        raise
    return file


def read_untrusted(
    folder: Path, name: str | PurePath, most_bytes: int = MOST_BYTES, deadline_s: float = DEADLINE_S
) -> bytes:
    """Reads a whole file.

    Args:
        deadline_s: longest time for reading, in seconds.
    """
    deadline, chunks, left = time.monotonic() + deadline_s, [], most_bytes
    with open_untrusted(folder, name) as file:
        _check_size(os.fstat(file.fileno()).st_size, most_bytes)
        while chunk := file.read(min(_CHUNK_BYTES, left + 1)):
            chunks.append(chunk)
            left -= len(chunk)
            _check_size(most_bytes - left, most_bytes)
            if time.monotonic() > deadline:
                raise OSError(errno.ETIMEDOUT, f"was not read within {deadline_s:g} s")
    return b"".join(chunks)


def read_end(folder: Path, name: str, most_bytes: int) -> bytes:
    with open_untrusted(folder, name) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - most_bytes))
        return file.read(most_bytes)


def read_log(folder: Path, name: str) -> str:
    """A log, empty if it does not exist; if no supervisor has shortened it, at most its first and last 8 MiB."""
    try:
        opened = open_untrusted(folder, name)
    except FileNotFoundError:
        return ""
    with opened as file:
        size = os.fstat(file.fileno()).st_size
        if size <= 4 * _END_BYTES:
            data = file.read(4 * _END_BYTES)
        else:
            head = file.read(_END_BYTES)
            file.seek(size - _END_BYTES)
            data = head + b"\n" + LEFT_OUT % (size - 2 * _END_BYTES) + b"\n" + file.read(_END_BYTES)
    return data.decode("utf-8", errors="replace")


def read_after_left_out(text: str) -> tuple[str, int]:
    """The text after the line with the number of omitted bytes, and that number; all of a complete log.

    >>> read_after_left_out("a\\n[nightjar left out                   12 bytes here]\\nb")
    ('\\nb', 12)
    """
    match = _LEFT_OUT_LINE.search(text)
    if match is None:
        return text, 0
    return text[match.end() :], int(match[1])


def create_untrusted(folder: Path, name: str) -> BinaryIO:
    """Creates a file; one of an earlier job with this name is replaced."""
    (folder / name).unlink(missing_ok=True)
    return os.fdopen(os.open(folder / name, _NEW_FILE, 0o666), "w+b")


def append_untrusted(folder: Path, name: str, text: str) -> None:
    """Adds text to a file that a job may have replaced, or creates the file."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with os.fdopen(os.open(folder / name, flags, 0o666), "ab") as file:
        _check_regular(os.fstat(file.fileno()))
        file.write(text.encode())


def _open_folder(name: str, at: int | None) -> int:
    try:
        return os.open(name, _FOLDER, dir_fd=at)
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            raise OSError(error.errno, f"{name} is a symbolic link, or not a folder") from None
        raise


def _check_regular(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, f"is {name_kind(status.st_mode)}, expected a regular file")


def name_kind(mode: int) -> str:
    return next((text for is_kind, text in _KINDS if is_kind(mode)), "something else")


def _check_size(size_bytes: int, most_bytes: int) -> None:
    if size_bytes > most_bytes:
        raise OSError(errno.EFBIG, f"has {size_bytes:,} bytes or more, expected at most {most_bytes:,}")
