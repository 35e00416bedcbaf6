"""The software bill of materials (SBOM) of an image, in CycloneDX. Pure.

In: the packages in an image, and the lock files that it was built from. Out: a CycloneDX 1.6 document: the operating
system, one component for each package with its purl and licences, and the locked hashes of each Python package. A
package that is in no lock is marked `nightjar:locked` = `false`: the document lists what is installed, not intended.

Source: cyclonedx.org/docs/1.6/json; github.com/package-url/purl-spec (types pypi, deb, oci).
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from nightjar_ci.images.content.contents import Origin

SPEC_VERSION = "1.6"
_ENTRY = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>\S+)(?P<hashes>.*(?:\n\s+--hash=.*)*)", re.MULTILINE)
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_ESCAPED = re.compile(r"[^A-Za-z0-9._~-]")


def read_locked_hashes(locks: Iterable[str]) -> dict[tuple[str, str], tuple[str, ...]]:
    """The SHA-256 of every file that a lock allows, by package name and version.

    >>> read_locked_hashes(["jax==1.0 \\\\\\n    --hash=sha256:" + "0" * 64]) == {("jax", "1.0"): ("0" * 64,)}
    True
    """
    hashes: dict[tuple[str, str], tuple[str, ...]] = {}
    for text in locks:
        for entry in _ENTRY.finditer(text):
            key = (entry["name"].lower().replace("_", "-"), entry["version"])
            hashes[key] = tuple(sorted({*hashes.get(key, ()), *_HASH.findall(entry["hashes"])}))
    return hashes


def render_sbom(
    *,
    name: str,
    digest: str,
    created: str | None,
    python: Mapping[str, str],
    system: Mapping[str, str],
    origins: Mapping[str, Origin],
    licences: Mapping[str, str],
    release: Mapping[str, str],
    hashes: Mapping[tuple[str, str], tuple[str, ...]],
) -> dict[str, Any]:
    """The SBOM of an image of one platform; the same image gives the same document.

    Args:
        created: the image's creation date, RFC 3339.
        origins: of system packages: advisories name source packages.
        release: `ID`, `VERSION_ID`, `VERSION_CODENAME` of os-release: scanners choose their advisories by them.
        hashes: from `read_locked_hashes`.
    """
    container = {
        "type": "container",
        "bom-ref": digest,
        "name": name,
        "version": digest,
        "purl": f"pkg:oci/{name}@{_escape(digest)}",
    }
    components = [
        _python_component(package, version, hashes.get((package, version)), licences.get(f"pypi/{package}", ""))
        for package, version in sorted(python.items())
    ]
    vendor, version_id = release.get("ID", "debian"), release.get("VERSION_ID", "")
    distro = version_id and f"{vendor}-{version_id}"
    for package, version in sorted(system.items()):
        origin = origins.get(package, Origin("", ""))
        qualifiers = {"arch": origin.architecture, "distro": distro, "upstream": origin.source}
        components.append(_component(f"deb/{vendor}", package, version, licences.get(f"deb/{package}", ""), qualifiers))
    if distro:
        codename = {"name": "nightjar:codename", "value": release.get("VERSION_CODENAME", "")}
        system_component = {
            "type": "operating-system",
            "bom-ref": f"os:{distro}",
            "name": vendor,
            "version": version_id,
        }
        components.append({**system_component, "properties": [codename]})
    metadata: dict[str, Any] = {"component": container}
    if created is not None:
        metadata["timestamp"] = created
    return {
        "$schema": f"http://cyclonedx.org/schema/bom-{SPEC_VERSION}.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": SPEC_VERSION,
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'{name}@{digest}')}",
        "version": 1,
        "metadata": metadata,
        "components": components,
        "dependencies": [{"ref": digest, "dependsOn": sorted({component["bom-ref"] for component in components})}],
    }


def read_sbom_packages(document: bytes) -> tuple[dict[str, str], dict[str, str]]:
    python: dict[str, str] = {}
    system: dict[str, str] = {}
    for component in json.loads(document)["components"]:
        purl = component.get("purl", "")  # the operating system has none
        if purl:
            packages = python if purl.startswith("pkg:pypi/") else system
            packages[str(component["name"])] = str(component["version"])
    return python, system


def _python_component(name: str, version: str, hashes: tuple[str, ...] | None, licence: str) -> dict[str, Any]:
    component = _component("pypi", name, version, licence, {})
    component["properties"] = [{"name": "nightjar:locked", "value": "true" if hashes else "false"}]
    if hashes:  # of every file that the lock allows; one of these files was installed
        allowed = [{"alg": "SHA-256", "content": sha256} for sha256 in hashes]
        component["externalReferences"] = [{"type": "distribution", "url": component["purl"], "hashes": allowed}]
    return component


def _component(kind: str, name: str, version: str, licence: str, qualifiers: Mapping[str, str]) -> dict[str, Any]:
    purl = f"pkg:{kind}/{_escape(name)}@{_escape(version)}"
    if given := "&".join(f"{key}={_escape(value)}" for key, value in sorted(qualifiers.items()) if value):
        purl += f"?{given}"
    component: dict[str, Any] = {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
    if licence:
        component["licenses"] = [{"license": {"name": licence}}]
    return component


def _escape(text: str) -> str:
    return _ESCAPED.sub(lambda match: f"%{ord(match[0]):02X}", text)
