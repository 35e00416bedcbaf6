"""Which versions of a package are there, and since when? Asked of a package index.

In: a package and the index of this machine. Out: its releases. Reads the JSON and the HTML form of the simple index.

Source: packaging.python.org/en/latest/specifications/simple-repository-api (PEP 503, 592, 691, 700). Some mirrors give
PEP 700's upload time as `data-upload-time` in HTML; both are read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit

from packaging.utils import (
    InvalidName,
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import InvalidVersion, Version

from nightjar_ci.errors import InputError, NightjarError
from nightjar_ci.web.http import HttpError, get

ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """One version of a package in an index.

    Attributes:
        version: as the index spells it.
        uploaded: when its first file came, where the index says so (PEP 700).
        yanked: whether all of its files are yanked.
    """

    version: str
    uploaded: datetime | None = None
    yanked: bool = False


@dataclass(frozen=True, slots=True)
class File:
    """One file of a package."""

    name: str
    uploaded: datetime | None
    yanked: bool


def read_releases(package: str, index_url: str) -> list[Release]:
    """The releases of a package, oldest version first.

    Raises:
        InputError: the index does not have it, or no package can have that name.
        NightjarError: the index is not reached, or its answer is no simple index.
    """
    try:
        name = canonicalize_name(package, validate=True)
    except InvalidName:
        raise InputError(f"{package!r} is no name of a package.", "mind the spelling") from None
    try:
        body, content_type = get(f"{index_url.rstrip('/')}/{name}/", accept=ACCEPT)
    except HttpError as error:
        if error.status == 404:
            raise InputError(f"{package!r} is not in the package index.", "mind the spelling") from None
        raise NightjarError(f"{error}", "UV_DEFAULT_INDEX names another package index") from None
    try:
        files = list(_read_json(body) if "json" in content_type else _read_html(body))
    except (ValueError, KeyError, TypeError) as error:
        raise NightjarError(f"the answer of the package index about {package!r} cannot be read: {error}.") from None
    releases = group(name, files)
    if not releases:
        raise InputError(f"the package index has no release of {package!r}.", "mind the spelling")
    return releases


def group(name: str, files: Iterable[File]) -> list[Release]:
    """Files by version: a release is as old as its first file, and yanked where all of its files are."""
    by_version: dict[Version, list[File]] = {}
    for file in files:
        version = _version_of(name, file.name)
        if version is not None:
            by_version.setdefault(version, []).append(file)
    releases = []
    for version, found in sorted(by_version.items()):
        times = [file.uploaded for file in found if file.uploaded is not None]
        yanked = all(file.yanked for file in found)
        releases.append(Release(version=str(version), uploaded=min(times, default=None), yanked=yanked))
    return releases


def _version_of(name: str, file: str) -> Version | None:
    try:
        found, version = parse_wheel_filename(file)[:2] if file.endswith(".whl") else parse_sdist_filename(file)
    except (InvalidWheelFilename, InvalidSdistFilename, InvalidVersion):
        return None  # an egg or an installer of long ago
    return version if found == name else None


def _read_json(body: bytes) -> Iterable[File]:
    for file in json.loads(body)["files"]:
        yield File(file["filename"], _time(file.get("upload-time")), file.get("yanked", False) is not False)


def _read_html(body: bytes) -> list[File]:
    reader = _Anchors()
    reader.feed(body.decode("utf-8", errors="replace"))
    return reader.files


class _Anchors(HTMLParser):
    """The files that a page of a simple index links to."""

    def __init__(self) -> None:
        super().__init__()
        self.files: list[File] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "a" and (href := given.get("href")):
            name = unquote(urlsplit(href).path.rpartition("/")[2])
            self.files.append(File(name, _time(given.get("data-upload-time")), "data-yanked" in given))


def _time(text: object) -> datetime | None:
    try:
        return datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None
