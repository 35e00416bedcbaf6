"""The packages that a layer adds to an image: Python distributions and Debian packages. Pure.

In: the members of a layer's tar. Out: names and versions, and the removed ones. The packages are read from the
image itself, not from a list that could be wrong.

Source: packaging.python.org/en/latest/specifications/recording-installed-packages; OCI image-spec layer.md
(whiteouts).
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterable
from typing import IO, cast

from packaging.utils import canonicalize_name
from pydantic import BaseModel, ConfigDict

_METADATA = re.compile(r"(?P<folder>(?:.*/)?[^/]+\.dist-info)/METADATA")
_REMOVED = re.compile(r"(?P<folder>(?:.*/)?)\.wh\.(?P<dist>[^/]+\.dist-info)")
_DPKG_STATUS = "var/lib/dpkg/status"


class LayerContents(BaseModel):
    """The packages of one layer.

    Attributes:
        python: metadata folder of each distribution -> name and version.
        removed: metadata folders that the layer removes.
        system: Debian package -> version, of the image up to this layer; None if the layer does not change them.
        sources: Debian package -> source package, if it has another name.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    python: dict[str, tuple[str, str]] = {}
    removed: tuple[str, ...] = ()
    system: dict[str, str] | None = None
    sources: dict[str, str] = {}

    @property
    def packages(self) -> tuple[str, ...]:
        """The Python distributions, sorted, as `name==version`."""
        return tuple(sorted(f"{name}=={version}" for name, version in self.python.values()))


def scan_layer(members: Iterable[tuple[tarfile.TarFile, tarfile.TarInfo]]) -> LayerContents:
    """Reads the packages of a layer from its members, each with its tar."""
    python, removed, system, sources = {}, [], None, {}
    for tar, member in members:
        path = member.name.removeprefix("./")
        if not member.isfile():
            continue
        if metadata := _METADATA.fullmatch(path):
            python[metadata["folder"]] = _name_and_version(_read(tar, member))
        elif whiteout := _REMOVED.fullmatch(path):
            removed.append(whiteout["folder"] + whiteout["dist"])
        elif path == _DPKG_STATUS:
            text = _read(tar, member)
            system, sources = read_dpkg_status(text), read_dpkg_sources(text)
    return LayerContents(python=python, removed=tuple(removed), system=system, sources=sources)


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


def read_dpkg_sources(text: str) -> dict[str, str]:
    """The source packages in dpkg's status file, of packages that have another name.

    >>> read_dpkg_sources("Package: libssl3t64\\nSource: openssl (3.5.1-1)\\nVersion: 3.5.1-1\\n")
    {'libssl3t64': 'openssl'}
    """
    sources = {}
    for paragraph in text.split("\n\n"):
        fields = dict(re.findall(r"^(Package|Source): (\S+)", paragraph, re.MULTILINE))
        if "Source" in fields:
            sources[fields["Package"]] = fields["Source"]
    return dict(sorted(sources.items()))


def merge_sources(layers: Iterable[LayerContents]) -> dict[str, str]:
    """The source packages of an image; `layers` starts at the lowest."""
    return next((layer.sources for layer in reversed(list(layers)) if layer.system is not None), {})


def _read(tar: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    return cast(IO[bytes], tar.extractfile(member)).read().decode("utf-8", errors="replace")


def _name_and_version(metadata: str) -> tuple[str, str]:
    fields = dict(re.findall(r"^(Name|Version): (.*)$", metadata.partition("\n\n")[0], re.MULTILINE))
    return canonicalize_name(fields.get("Name", "").strip()), fields.get("Version", "").strip()
