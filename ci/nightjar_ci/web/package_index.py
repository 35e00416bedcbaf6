"""The releases of a package in a package index, with their upload times.

In: a package name and the URL of an index. Out: its releases. Reads the JSON and the HTML form of the simple API.

Source: packaging.python.org/en/latest/specifications/simple-repository-api (PEP 503, 592, 691, 700). Some mirrors send
PEP 700's upload time as `data-upload-time` in HTML; this module reads both.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from html.parser import HTMLParser
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit, urlunsplit

import pydantic_core
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
        version: normalized (PEP 440).
        uploaded: when its first file was uploaded, if the index says so (PEP 700).
    """

    version: str
    uploaded: datetime | None = None
    yanked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """One file of a package.

    Attributes:
        uploaded: when it was uploaded, if the index says so (PEP 700).
        yanked: whether it is yanked (PEP 592).
        sha256: its hash, if the index says so.
        has_metadata: whether the index serves its metadata separately (PEP 658).
    """

    name: str
    uploaded: datetime | None
    yanked: bool
    url: str = ""
    sha256: str | None = None
    requires_python: str | None = None
    has_metadata: bool = False


def read_releases(package: str, index_url: str) -> list[Release]:
    """The releases of a package, oldest version first."""
    files = read_files(package, index_url)
    releases = group(canonicalize_name(package), files)
    if not releases:
        raise InputError(f"the package index has no release of {package!r}.", "check the spelling")
    return releases


def read_files(package: str, index_url: str) -> list[File]:
    try:
        name = canonicalize_name(package, validate=True)
    except InvalidName:
        raise InputError(f"{package!r} is not a valid package name.", "check the spelling") from None
    try:
        url = f"{index_url.rstrip('/')}/{name}/"
        body, content_type = get(url, accept=ACCEPT)
    except HttpError as error:
        if error.status == 404:
            raise InputError(f"{package!r} is not in the package index.", "check the spelling") from None
        raise NightjarError(f"{error}", "set UV_DEFAULT_INDEX to use another package index") from None
    return parse_page(package, body, content_type, url)


def parse_page(package: str, body: bytes, content_type: str, url: str) -> list[File]:
    """The files on a page of the simple API, JSON (PEP 691) or HTML (PEP 503)."""
    try:
        files = _read_json(body, url) if "json" in content_type else _read_html(body, url)
        return [file for file in files if not re.search(r"[/\\\0]", file.name)]  # it becomes a file name here
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        AssertionError,
    ) as error:  # the last: of Python's HTML parser
        raise NightjarError(f"cannot read the package index page of {package!r}: {error}.") from None


def group(name: str, files: Iterable[File]) -> list[Release]:
    """Files grouped by version: a release is as old as its first file, and yanked if all of its files are."""
    by_version: dict[Version, list[File]] = {}
    for file in files:
        version = version_of(name, file.name)
        if version is not None:
            by_version.setdefault(version, []).append(file)
    releases = []
    for version, uploads in sorted(by_version.items()):
        times = [file.uploaded for file in uploads if file.uploaded is not None]
        yanked = all(file.yanked for file in uploads)
        releases.append(Release(version=str(version), uploaded=min(times, default=None), yanked=yanked))
    return releases


def version_of(name: str, file: str) -> Version | None:
    """The version of a file; None if it is not a wheel or source distribution of the package."""
    try:
        package, version = parse_wheel_filename(file)[:2] if file.endswith(".whl") else parse_sdist_filename(file)
    except (InvalidWheelFilename, InvalidSdistFilename, InvalidVersion):
        return None  # an egg or an old installer
    return version if package == name else None


def _read_json(body: bytes, url: str) -> Iterable[File]:
    for file in pydantic_core.from_json(body)["files"]:
        texts = (file["filename"], file.get("url", ""), file.get("requires-python") or "")
        if not all(isinstance(text, str) for text in texts):
            raise TypeError(f"not a file of an index: {file!r}"[:200])
        yield File(
            name=file["filename"],
            uploaded=_parse_time(file.get("upload-time")),
            yanked=file.get("yanked", False) is not False,
            url=urljoin(url, file.get("url", "")),
            sha256=(file.get("hashes") or {}).get("sha256"),
            requires_python=file.get("requires-python"),
            has_metadata=bool(file.get("core-metadata", file.get("dist-info-metadata"))),
        )


def _read_html(body: bytes, url: str) -> Iterable[File]:
    reader = _Anchors(url)
    reader.feed(body.decode("utf-8", errors="replace"))
    return reader.files


class _Anchors(HTMLParser):
    """Parser of the links on a simple API page."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url
        self.files: list[File] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        if tag != "a" or not (href := attributes.get("href")):
            return
        address = urlsplit(urljoin(self.url, href))
        kind, _, digest = address.fragment.partition("=")
        self.files.append(
            File(
                name=unquote(address.path.rpartition("/")[2]),
                uploaded=_parse_time(attributes.get("data-upload-time")),
                yanked="data-yanked" in attributes,
                url=urlunsplit(address._replace(fragment="")),
                sha256=digest if kind == "sha256" else None,
                requires_python=attributes.get("data-requires-python"),
                has_metadata="data-core-metadata" in attributes or "data-dist-info-metadata" in attributes,
            )
        )


def _parse_time(text: Any) -> datetime | None:
    try:
        return datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return None
