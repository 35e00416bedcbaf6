"""A capture in the making: a hidden folder inside its capture folder, put in place when the capture is whole.

In: the capture folder. Out: the folder to write to. An earlier capture stays until then, and stays for good if the new
one, or its run, fails. The hidden folder lies inside because a capture folder may be a mount point or the working
folder.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from nightjar_profiling.capture_folder.manifest import MARK, read_manifest
from nightjar_profiling.errors import InputError
from nightjar_profiling.readers.detect import has_raw
from nightjar_profiling.terminal import say

OWN = ("raw", "sources", "tables", "profile.json", "flamegraph.json", "report.html", "exports", "manifest.json")
NEW, OLD = ".nightjar-new-", ".nightjar-old-"  # beginnings of names
FAILED = "failed"  # next to an earlier capture: a failed run's capture, or a raw trace without a report


@contextmanager
def making(folder: Path) -> Iterator[Path]:
    """Makes a capture: files written inside are moved to their place (`find_place`) at the end, or not at all.

    Args:
        folder: the capture folder. Files in it that are not of a capture stay.

    Yields:
        The folder to write to, with an empty `raw/`.
    """
    check_replaceable(folder)
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    mark = _lock(folder)
    try:
        _clean(folder)
        new = Path(tempfile.mkdtemp(prefix=NEW, dir=folder))
        new.chmod(0o755)
        (new / "raw").mkdir()
        try:
            yield new
            if find_place(folder, new) == folder:
                _put_in_place(folder, new)
            else:
                _set_aside(folder, new)
                say(f"the earlier capture in {folder} stays as it was.")
        except BaseException:
            _keep_earlier(folder, new)
            raise
        finally:
            shutil.rmtree(new, ignore_errors=True)
    finally:
        (folder / MARK).unlink(missing_ok=True)
        os.close(mark)
        if is_new and not any(folder.iterdir()):
            folder.rmdir()


def check_replaceable(folder: Path) -> None:
    """Refuses to overwrite anything but a capture, finished or not."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: not a folder.", "name another folder with --out")
    marks = (folder / "manifest.json", folder / MARK)
    if folder.is_dir() and any(folder.iterdir()) and not any(map(Path.is_file, marks)):
        raise InputError(f"{folder}: not empty, and not a capture.", "name another folder with --out")


def find_place(folder: Path, new: Path) -> Path:
    """The place of a capture: its folder, or `failed/` in it if its run failed and the earlier run did not."""
    if _is_whole(folder) and _ended_well(folder) and not _ended_well(new):
        return folder / FAILED
    return folder


def _ended_well(folder: Path) -> bool:
    """Whether the program of a capture did not fail, as far as is known."""
    try:
        return read_manifest(folder).exit_code in {0, None}
    except InputError:
        return False


def _is_whole(folder: Path) -> bool:
    return (folder / "manifest.json").is_file() and (folder / "profile.json").is_file()


def _put_in_place(folder: Path, new: Path) -> None:
    """Moves a capture out of its hidden folder; the replaced one comes back if a move fails."""
    old = Path(tempfile.mkdtemp(prefix=OLD, dir=folder))
    moves: list[tuple[Path, Path]] = []
    try:
        for source, target in ((folder, old), (new, folder)):
            for name in OWN:
                if os.path.lexists(source / name):
                    (source / name).rename(target / name)
                    moves.append((source / name, target / name))
    except BaseException:
        for source, target in reversed(moves):
            target.rename(source)
        old.rmdir()
        raise
    shutil.rmtree(old, ignore_errors=True)


def _keep_earlier(folder: Path, new: Path) -> None:
    """After a failure: an earlier capture stays, and a raw trace is kept, so that its report can be made later."""
    if _is_whole(folder):
        say(f"the earlier capture in {folder} stays as it was.")
    if not (new / "manifest.json").is_file():
        return
    kept = folder
    if _is_whole(folder):
        if not has_raw(new):
            return
        kept = folder / FAILED
        with suppress(OSError):
            _set_aside(folder, new)
    else:
        with suppress(OSError):
            _put_in_place(folder, new)
    if has_raw(kept):
        say(f"the raw trace of this run is kept; to try again: nightjar-profiling report {kept}")


def _set_aside(folder: Path, new: Path) -> None:
    """Moves a capture, complete or not, next to the earlier one."""
    aside = folder / FAILED
    if aside.is_dir() and not aside.is_symlink() and (has_raw(aside) or _is_whole(aside)):
        shutil.rmtree(aside)
    if os.path.lexists(aside):
        raise FileExistsError(errno.EEXIST, "a failed capture goes there, and this is none", str(aside))
    new.rename(aside)


def _clean(folder: Path) -> None:
    """Removes leftovers of a killed process; puts back a capture that it was just replacing."""
    for old in folder.glob(f"{OLD}*"):
        if not _is_whole(folder):
            for name in OWN:
                if os.path.lexists(old / name) and not os.path.lexists(folder / name):
                    (old / name).rename(folder / name)
        shutil.rmtree(old, ignore_errors=True)
    for new in folder.glob(f"{NEW}*"):
        shutil.rmtree(new, ignore_errors=True)
    if has_raw(folder / FAILED) and not _is_whole(folder / FAILED):
        shutil.rmtree(folder / FAILED, ignore_errors=True)


def _lock(folder: Path) -> int:
    """Marks a folder as being written by this process; the system takes the lock away when the process ends."""
    mark = os.open(folder / MARK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(mark)
        raise InputError(
            f"{folder}: another process is writing a capture there.",
            "give each process a folder of its own with --out, and make one of them with `nightjar-profiling merge`",
        ) from None
    except OSError:
        pass  # a file system without locks
    return mark
