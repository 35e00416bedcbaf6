"""A database of vulnerabilities on disk, in the format of osv.dev.

In: a folder of JSON files, a ZIP file of them such as the `all.zip` that osv.dev publishes for each ecosystem, or a
folder of both. Out: the entries that are about some packages.

Source: ossf.github.io/osv-schema.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from nightjar_ci.errors import InputError

MOST_BYTES = 16 * 2**20  # of one entry


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Package(_Part):
    """The package that an entry is about."""

    ecosystem: str = ""
    name: str = ""


class Range(_Part):
    """Versions from `introduced` to before `fixed`, or up to `last_affected`."""

    type: str
    events: tuple[dict[str, str], ...] = ()


class Affected(_Part):
    """Affected versions of a package."""

    package: Package = Package()
    ranges: tuple[Range, ...] = ()
    versions: tuple[str, ...] = ()


class Entry(_Part):
    """One vulnerability."""

    id: str
    aliases: tuple[str, ...] = ()
    upstream: tuple[str, ...] = ()
    summary: str = ""
    published: str = ""
    withdrawn: str | None = None
    affected: tuple[Affected, ...] = ()
    severity: tuple[dict[str, str], ...] = ()
    database_specific: dict[str, Any] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Its id and what else it is called; an advisory of Debian names the CVE that it is about as `upstream`."""
        return (self.id, *self.aliases, *self.upstream)

    @property
    def level(self) -> str:
        """`critical`, `high`, `moderate` or `low` where the database says so, else the CVSS vector, else `unknown`."""
        said = self.database_specific.get("severity")
        if isinstance(said, str) and said:
            return said.lower()
        return next((part["score"] for part in self.severity if "score" in part), "unknown")


def read_entries(path: Path, packages: Collection[tuple[str, str]]) -> Iterator[Entry]:
    """The entries about packages that are not withdrawn.

    Args:
        path: the database.
        packages: ecosystem (`PyPI`, `Debian`) and name of each package.

    Raises:
        InputError: there is no database, or a file in it is damaged.
    """
    count = 0
    for origin, text in _read_files(path):
        count += 1
        try:
            entry = Entry.model_validate(json.loads(text, object_hook=_without_nulls))
        except (ValueError, ValidationError, RecursionError) as error:
            raise InputError(f"{origin}: not a valid entry of OSV: {type(error).__name__}.") from None
        if entry.withdrawn is None and any(_key(affected) in packages for affected in entry.affected):
            yield entry
    if not count:
        raise InputError(
            f"{path}: no database of OSV: expected all.zip, or a folder of .json and .zip files.",
            "https://google.github.io/osv.dev/data/ tells where to get one",
        )


def _without_nulls(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields that say something: databases write null for what they leave out."""
    return {name: value for name, value in fields.items() if value is not None}


def _key(affected: Affected) -> tuple[str, str]:
    return affected.package.ecosystem.partition(":")[0], affected.package.name


def _read_files(path: Path) -> Iterator[tuple[str, bytes]]:
    paths = [path]
    if path.is_dir():
        paths = sorted(entry for entry in path.rglob("*") if entry.suffix in (".json", ".zip") and entry.is_file())
    for file in paths:
        try:
            if file.suffix == ".zip":
                yield from _read_zip(file)
            elif file.is_file():
                yield str(file), file.read_bytes()
        except (OSError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError) as error:
            raise InputError(f"{file}: cannot be read: {error}.") from None


def _read_zip(path: Path) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            if not member.filename.endswith(".json"):
                continue
            if member.file_size > MOST_BYTES:
                raise InputError(
                    f"{path}: {member.filename} has {member.file_size:,} bytes, expected at most {MOST_BYTES:,}."
                )
            yield f"{path}/{member.filename}", archive.read(member)
