"""The packages that a layer adds to an image: Python distributions and Debian packages. Pure.

In: the members of a layer's tar. Out: names, versions, licences, the removed ones, and the operating system. They are
read from the image itself, not from a list that could be wrong.

Source: packaging.python.org/en/latest/specifications/recording-installed-packages; OCI image-spec layer.md
(whiteouts).
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterable, Sequence
from typing import IO, NamedTuple, cast

from packaging.utils import canonicalize_name
from pydantic import Field

from nightjar_ci.formats.documents import StrictModel

_METADATA = re.compile(r"(?P<folder>(?:.*/)?[^/]+\.dist-info)/METADATA")
_REMOVED = re.compile(r"(?P<folder>(?:.*/)?)\.wh\.(?P<dist>[^/]+\.dist-info)")
_DPKG_STATUS = "var/lib/dpkg/status"
_RELEASE = "usr/lib/os-release"
_COPYRIGHT = re.compile(r"usr/share/doc/(?P<package>[^/]+)/copyright")
_LONGEST_LICENCE = 80  # characters: a name; some packages write the whole text in its place


class Origin(NamedTuple):
    """The source package of a Debian package, empty if it has the same name, and its architecture, such as `all`."""

    source: str
    architecture: str


class LayerContents(StrictModel):
    """The packages of one layer.

    Attributes:
        python: metadata folder of each distribution -> name and version.
        system: Debian package -> version, of the image up to this layer; None if the layer does not change them.
        origins: the same packages -> source package and architecture.
        licences: `pypi/NAME` or `deb/NAME` -> the licences, as the package names them.
        release: `ID`, `VERSION_ID` and `VERSION_CODENAME` of the operating system; empty if the layer has none.
    """

    python: dict[str, tuple[str, str]] = Field(default_factory=dict)
    removed: tuple[str, ...] = ()
    system: dict[str, str] | None = None
    origins: dict[str, Origin] = Field(default_factory=dict)
    licences: dict[str, str] = Field(default_factory=dict)
    release: dict[str, str] = Field(default_factory=dict)


def scan_layer(members: Iterable[tuple[tarfile.TarFile, tarfile.TarInfo]]) -> LayerContents:
    python, removed, system, origins = {}, [], None, {}
    licences, release = {}, {}
    for tar, member in members:
        path = member.name.removeprefix("./")
        if not member.isfile():
            continue
        if metadata := _METADATA.fullmatch(path):
            text = _read(tar, member)
            name, _ = python[metadata["folder"]] = _name_and_version(text)
            licences[f"pypi/{name}"] = _read_licence(text)
        elif whiteout := _REMOVED.fullmatch(path):
            removed.append(whiteout["folder"] + whiteout["dist"])
        elif path == _DPKG_STATUS:
            text = _read(tar, member)
            system, origins = read_dpkg_status(text), read_dpkg_origins(text)
        elif path == _RELEASE:
            fields = re.findall(r"^(ID|VERSION_ID|VERSION_CODENAME)=\"?([^\"\n]*)", _read(tar, member), re.MULTILINE)
            release = dict(fields)
        elif copyright_file := _COPYRIGHT.fullmatch(path):
            names = re.findall(r"^License:[ \t]*(\S.*)$", _read(tar, member), re.MULTILINE)
            licences[f"deb/{copyright_file['package']}"] = ", ".join(sorted(set(map(str.strip, names))))
    return LayerContents(
        python=python,
        removed=tuple(removed),
        system=system,
        origins=origins,
        licences={name: licence for name, licence in sorted(licences.items()) if licence},
        release=release,
    )


def merge_contents(layers: Iterable[LayerContents]) -> tuple[dict[str, str], dict[str, str]]:
    """The Python distributions and the Debian packages of an image, name to version; `layers` starts at the lowest."""
    python: dict[str, tuple[str, str]] = {}
    system: dict[str, str] = {}
    for layer in layers:
        python = {folder: dist for folder, dist in python.items() if folder not in layer.removed} | layer.python
        if layer.system is not None:
            system = layer.system
    return dict(sorted(python.values())), system


def read_dpkg_status(text: str) -> dict[str, str]:
    """The installed packages in dpkg's status file.

    >>> read_dpkg_status("Package: bash\\nStatus: install ok installed\\nVersion: 5.2-1\\n\\n"
    ...                  "Package: gone\\nStatus: deinstall ok config-files\\nVersion: 1\\n")
    {'bash': '5.2-1'}
    """
    installed = {}
    for paragraph in text.split("\n\n"):
        fields = dict(re.findall(r"^(Package|Status|Version): (.*)$", paragraph, re.MULTILINE))
        if fields.get("Status", "").endswith(" installed"):
            installed[fields["Package"]] = fields["Version"]
    return dict(sorted(installed.items()))


def read_dpkg_origins(text: str) -> dict[str, Origin]:
    """The source package and the architecture of each package in dpkg's status file.

    >>> read_dpkg_origins("Package: libssl3t64\\nSource: openssl (3.5.1-1)\\nArchitecture: amd64\\n")
    {'libssl3t64': Origin(source='openssl', architecture='amd64')}
    """
    origins = {}
    for paragraph in text.split("\n\n"):
        fields = dict(re.findall(r"^(Package|Source|Architecture): (\S+)", paragraph, re.MULTILINE))
        if "Package" in fields:
            origins[fields["Package"]] = Origin(fields.get("Source", ""), fields.get("Architecture", ""))
    return dict(sorted(origins.items()))


def merge_details(layers: Sequence[LayerContents]) -> tuple[dict[str, Origin], dict[str, str], dict[str, str]]:
    """Origins and licences of an image's packages, and its operating system; `layers` starts at the lowest."""
    origins = next((layer.origins for layer in reversed(layers) if layer.system is not None), {})
    release = next((layer.release for layer in reversed(layers) if layer.release), {})
    return origins, {name: licence for layer in layers for name, licence in layer.licences.items()}, release


def _read(tar: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    return cast(IO[bytes], tar.extractfile(member)).read().decode("utf-8", errors="replace")


def _name_and_version(metadata: str) -> tuple[str, str]:
    fields = dict(re.findall(r"^(Name|Version): (.*)$", metadata.partition("\n\n")[0], re.MULTILINE))
    return canonicalize_name(fields.get("Name", "").strip()), fields.get("Version", "").strip()


def _read_licence(metadata: str) -> str:
    """The licence of a distribution: an SPDX expression, or the name that its author wrote."""
    fields = dict(re.findall(r"^(License-Expression|License): *(.*)$", metadata.partition("\n\n")[0], re.MULTILINE))
    licence = (fields.get("License-Expression") or fields.get("License") or "").strip()
    return licence if len(licence) <= _LONGEST_LICENCE else ""
