"""The packages of an SBOM that a database of vulnerabilities knows: those of PyPI and of Debian.

In: a CycloneDX document, of Nightjar or of another tool. Out: a `Component` for each package, found by its purl.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from packaging.utils import canonicalize_name

from nightjar_ci.errors import InputError

_PURL = re.compile(r"pkg:(?P<kind>pypi|deb/debian)/(?P<name>[^@?#]+)@(?P<version>[^?#]+)(?:\?(?P<qualifiers>[^#]*))?")
_ECOSYSTEMS = {"pypi": "PyPI", "deb/debian": "Debian"}


@dataclass(frozen=True, slots=True, order=True)
class Component:
    """A package.

    Attributes:
        ecosystem: `PyPI` or `Debian`.
        name: as installed.
        version: installed.
        source: what the database calls it: for Debian the source package.
    """

    ecosystem: str
    name: str
    version: str
    source: str

    @property
    def purl(self) -> str:
        """The package URL without qualifiers and version, in lower case."""
        kind = {ecosystem: kind for kind, ecosystem in _ECOSYSTEMS.items()}[self.ecosystem]
        return f"pkg:{kind}/{self.name}".lower()


def read_components(document: bytes, origin: str) -> list[Component]:
    """The packages of an SBOM, each once.

    Args:
        document: CycloneDX, JSON.
        origin: where it is from, for messages.

    Raises:
        InputError: it is no CycloneDX document.
    """
    try:
        parsed = json.loads(document)
        purls = _walk(parsed.get("components", []))
        if parsed["bomFormat"] != "CycloneDX":
            raise ValueError(parsed["bomFormat"])
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InputError(
            f"{origin}: not a valid SBOM: expected a CycloneDX document in JSON.", "syft -o cyclonedx-json"
        ) from None
    return sorted({component for purl in purls if (component := parse_purl(purl)) is not None})


def parse_purl(purl: str) -> Component | None:
    """The package of a package URL; None for those of other kinds.

    >>> parse_purl("pkg:deb/debian/libssl3t64@3.5.1-1?arch=amd64&upstream=openssl%403.5.1").source
    'openssl'
    >>> parse_purl("pkg:npm/left-pad@1.0") is None
    True
    """
    match = _PURL.fullmatch(purl)
    if match is None:
        return None
    ecosystem, name, version = _ECOSYSTEMS[match["kind"]], unquote(match["name"]), unquote(match["version"])
    if ecosystem == "PyPI":
        return Component(ecosystem, canonicalize_name(name), version, canonicalize_name(name))
    qualifiers = dict(part.partition("=")[::2] for part in (match["qualifiers"] or "").split("&"))
    source = unquote(qualifiers.get("upstream", "")).partition("@")[0]
    return Component(ecosystem, name, version, source or name)


def _walk(components: list[Any]) -> list[str]:
    """The purls of components and of those inside of them."""
    purls: list[str] = []
    left = list(components)
    while left:
        component = left.pop()
        purls.append(str(component.get("purl", "")))
        left += component.get("components", [])
    return purls
