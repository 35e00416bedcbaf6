"""Which packages does a layer of an image add? Python distributions and Debian packages. Pure.

In: the members of a layer's tar. Out: names and versions, and what the layer takes away. What an image holds is read
from the image itself, so that no list beside it can be wrong.

Source: packaging.python.org/en/latest/specifications/recording-installed-packages; OCI image-spec layer.md
(whiteouts).
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Callable, Iterable

from packaging.utils import canonicalize_name
from pydantic import BaseModel, ConfigDict

_METADATA = re.compile(r"(?P<folder>(?:.*/)?[^/]+\.dist-info)/METADATA")
_REMOVED = re.compile(r"(?P<folder>(?:.*/)?)\.wh\.(?P<dist>[^/]+\.dist-info)")
_DPKG_STATUS = "var/lib/dpkg/status"


class LayerContents(BaseModel):
    """What one layer adds to an image.

    Attributes:
        python: folder of each distribution's metadata -> name and version.
        removed: metadata folders that the layer takes away.
        system: Debian package -> version, of the whole image as far as this layer; None where the layer says nothing.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    python: dict[str, tuple[str, str]] = {}
    removed: tuple[str, ...] = ()
    system: dict[str, str] | None = None


def scan_layer(members: Iterable[tarfile.TarInfo], read: Callable[[tarfile.TarInfo], bytes]) -> LayerContents:
    """Reads what a layer adds.

    Args:
        members: of the layer's tar, in its order.
        read: gives the bytes of a member; it is called before the next member is taken.
    """
    python, removed, system = {}, [], None
    for member in members:
        path = member.name.removeprefix("./")
        if not member.isfile():
            continue
        if metadata := _METADATA.fullmatch(path):
            python[metadata["folder"]] = _name_and_version(read(member).decode("utf-8", errors="replace"))
        elif gone := _REMOVED.fullmatch(path):
            removed.append(gone["folder"] + gone["dist"])
        elif path == _DPKG_STATUS:
            system = read_dpkg_status(read(member).decode("utf-8", errors="replace"))
    return LayerContents(python=python, removed=tuple(removed), system=system)


def merge_contents(layers: Iterable[LayerContents]) -> tuple[dict[str, str], dict[str, str]]:
    """The Python distributions and the Debian packages of an image, name to version; the lowest layer comes first."""
    python: dict[str, tuple[str, str]] = {}
    system: dict[str, str] = {}
    for layer in layers:
        python = {folder: dist for folder, dist in python.items() if folder not in layer.removed} | layer.python
        system = layer.system if layer.system is not None else system
    return dict(sorted(python.values())), system


def read_dpkg_status(text: str) -> dict[str, str]:
    """The installed packages of Debian's database.

    >>> read_dpkg_status("Package: bash\\nStatus: install ok installed\\nVersion: 5.2-1\\n\\n"
    ...                  "Package: gone\\nStatus: deinstall ok config-files\\nVersion: 1\\n")
    {'bash': '5.2-1'}
    """
    found = {}
    for paragraph in text.split("\n\n"):
        fields = dict(re.findall(r"^(Package|Status|Version): (.*)$", paragraph, re.MULTILINE))
        if fields.get("Status", "").endswith(" installed"):
            found[fields["Package"]] = fields["Version"]
    return dict(sorted(found.items()))


def _name_and_version(metadata: str) -> tuple[str, str]:
    fields = dict(re.findall(r"^(Name|Version): (.*)$", metadata.partition("\n\n")[0], re.MULTILINE))
    return canonicalize_name(fields.get("Name", "").strip()), fields.get("Version", "").strip()
