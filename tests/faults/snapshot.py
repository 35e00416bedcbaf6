"""What stands in a world, and what is wrong with what a fault left of it.

In: two snapshots of runs without a fault, and the one after a fault. Out: sentences, one for each loss.
"""

import hashlib
import json
import re
import sqlite3
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

# Written while a command runs, and whole only at its end.
STREAMS = (".log",)
# SQLite's own journals: the next reader undoes or completes what they hold.
JOURNALS = ("-journal", "-wal", "-shm")
_TIME = re.compile(rb"\d{4}-\d\d-\d\d[T ]\d\d:\d\d[0-9:.+Z]*")
_WHOLE = re.compile(r"(?<=[(,])\d+(?=[,)])")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The contents of a world's files by path, as digests, and the rows of its databases, each with its number.

    In rows whole numbers are masked: many are the ids of other rows, which depend on the order of writing.
    """

    files: dict[str, str]
    rows: dict[str, Counter[str]]


def take(folder: Path, served: Counter[str] | None = None) -> Snapshot:
    """Reads a world; its own path and times of the day are masked in what the files say."""
    files: dict[str, str] = {}
    rows = {} if served is None else {"the service": Counter(_mask(line) for line in served.elements())}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink() or not path.is_file() or name.endswith(JOURNALS):
            continue
        if name.endswith(".sqlite"):
            rows[name] = Counter(map(_mask, _dump(path)))
        elif name.endswith("probes.jsonl"):
            rows[name] = Counter(f"{probe['name']}: {probe['outcome']}" for probe in _read_lines(path))
        else:
            files[name] = hashlib.sha256(_read_masked(folder, path)).hexdigest()
    return Snapshot(files, rows)


def digest_state(folder: Path) -> str:
    """One digest of all that stands in a world, journals and empty folders too; its path and times are masked."""
    whole = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        whole.update(repr((path.relative_to(folder).as_posix(), path.lstat().st_mode)).encode())
        if path.is_file() and not path.is_symlink():
            whole.update(hashlib.sha256(_read_masked(folder, path)).digest())
    return whole.hexdigest()


def _read_masked(folder: Path, path: Path) -> bytes:
    return _TIME.sub(b"TIME", path.read_bytes().replace(str(folder).encode(), b"WORLD"))


def _mask(line: str) -> str:
    return _WHOLE.sub("#", line)


def _read_lines(path: Path) -> Iterator[dict[str, str]]:
    """The probes of a bisection; a kill may tear the last line, which the next probe replaces."""
    for line in path.read_text().split("\n"):
        with suppress(ValueError):
            yield json.loads(line)


def _dump(path: Path) -> Iterator[str]:
    with sqlite3.connect(path) as database:
        yield from database.iterdump()
        (sound,) = database.execute("pragma integrity_check").fetchone()
    database.close()
    if sound != "ok":
        raise sqlite3.DatabaseError(f"{path}: {sound}")


def find_torn(folder: Path, names: Iterator[str]) -> Iterator[str]:
    """The files that are not whole: JSON, XML and HTML that end in the middle."""
    for name in names:
        path = folder / name
        if path.suffix not in (".json", ".xml", ".svg", ".html"):
            continue
        try:
            text = path.read_text(encoding="utf-8")
            if name.endswith(".json"):
                json.loads(text)
            elif name.endswith((".xml", ".svg")):
                ElementTree.fromstring(text)
            elif name.endswith(".html") and not text.rstrip().endswith("</html>"):
                yield f"{name} is cut"
        except (ValueError, ElementTree.ParseError) as error:
            yield f"{name} is torn: {error}"


def find_losses(before: Snapshot, final: Snapshot, other: Snapshot, after: Snapshot) -> Iterator[str]:
    """What was there before a fault, or has a result's name after it, and is neither the old nor the new one."""
    for name, digest in before.files.items():
        allowed = {digest, final.files.get(name)}
        if name in final.files and name not in after.files:
            yield f"{name} is lost"
        elif (
            name in after.files and after.files[name] not in allowed and final.files.get(name) == other.files.get(name)
        ):
            yield f"{name} is neither the old nor the new one"
    for name in final.files.keys() - before.files.keys():
        is_stable = final.files[name] == other.files.get(name)
        if name in after.files and is_stable and after.files[name] != final.files[name] and not name.endswith(STREAMS):
            yield f"{name} is there in part"
    for name, rows in before.rows.items():
        kept = rows & final.rows.get(name, Counter()) & other.rows.get(name, Counter())
        if lost := kept - after.rows.get(name, Counter()):
            yield f"{name} has lost {lost.total()} rows, such as {min(lost)[:200]}"


def find_differences(final: Snapshot, other: Snapshot, after: Snapshot) -> Iterator[str]:
    """What differs from a run without a fault, files with times left out."""
    for name, digest in final.files.items():
        if name not in after.files:
            yield f"{name} is missing"
        elif digest == other.files.get(name) and after.files[name] != digest:
            yield f"{name} differs"
    for name, rows in final.rows.items():
        if missing := (rows & other.rows.get(name, Counter())) - after.rows.get(name, Counter()):
            yield f"{name} lacks {missing.total()} rows, such as {min(missing)[:200]}"
