"""What is installed in an environment: pins, and packages that come from folders and files of this machine.

In: the environment that the user stands in, or one that was made. Out: a `Frozen`, from which the same environment can
be made again, and `LocalPackage`s, as an outcome records them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from pathlib import Path
from urllib.parse import unquote, urlsplit

from packaging.utils import canonicalize_name

from nightjar_ci.environments.current import find_current
from nightjar_ci.environments.sources import Source, read_source
from nightjar_ci.formats.run_record import LocalPackage


@dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    """What is installed: pinned packages, and packages that were installed from a folder of this machine.

    Attributes:
        pins: canonical name to requirement, `numpy==2.4.6` or `name @ url`.
        folders: canonical name to the folder and whether it was installed editable.
    """

    pins: dict[str, str]
    folders: dict[str, tuple[Path, bool]]


def freeze(installed: Iterable[Distribution] | None = None) -> Frozen:
    """What the current environment holds; where a package is found twice, the first is what Python imports.

    What a distribution of Linux installed for itself is not in any index, and left out. What conda installed counts by
    its version: its origin is a folder of the machine that built it.
    """
    pins: dict[str, str] = {}
    folders: dict[str, tuple[Path, bool]] = {}
    for found in distributions(path=list(find_current().path)) if installed is None else installed:
        raw_name = found.metadata["Name"]
        if not raw_name or (name := canonicalize_name(raw_name)) in pins or name in folders or _is_of_system(found):
            continue
        recorded = None if _installer(found) == "conda" else found.read_text("direct_url.json")
        origin = json.loads(recorded or "{}")  # PEP 610
        url = urlsplit(origin.get("url", ""))
        if "dir_info" in origin and url.scheme == "file":
            folders[name] = Path(unquote(url.path)), bool(origin["dir_info"].get("editable"))
        elif vcs := origin.get("vcs_info"):
            pins[name] = f"{name} @ {vcs['vcs']}+{origin['url']}@{vcs['commit_id']}"
        elif origin:
            pins[name] = f"{name} @ {origin['url']}"
        else:
            pins[name] = f"{name}=={found.version}"
    return Frozen(pins=pins, folders=folders)


def _is_of_system(distribution: Distribution) -> bool:
    debian = Path(str(distribution.locate_file(""))) == Path("/usr/lib/python3/dist-packages")
    return debian or _installer(distribution) == "rpm"


def _installer(distribution: Distribution) -> str:
    return (distribution.read_text("INSTALLER") or "").strip()


def read_distributions(prefix: Path) -> Iterable[Distribution]:
    """What is installed in a virtual environment."""
    return distributions(path=[str(path) for path in prefix.glob("lib/python*/site-packages")])


def find_local_packages(sources: Mapping[str, Source], path: Sequence[str]) -> tuple[LocalPackage, ...]:
    """What is installed from this machine.

    Args:
        sources: what it was installed from, by canonical name.
        path: folders of the packages of the environment.
    """
    versions = _read_versions(path)
    planned = plan_local_packages({name: source for name, source in sources.items() if name in versions})
    return tuple(package.model_copy(update={"version": versions[package.name]}) for package in planned)


def plan_local_packages(sources: Mapping[str, Source]) -> tuple[LocalPackage, ...]:
    """What is to be installed from this machine; its versions are known once it is built."""
    return tuple(
        LocalPackage(
            name=name,
            version=None,
            path=str(source.path),
            editable=source.editable,
            sha256=source.digest,
            git=source.git,
        )
        for name, source in sorted(sources.items())
    )


def find_imported_packages(path: Sequence[str]) -> tuple[LocalPackage, ...]:
    """What is installed from folders in an environment that Nightjar did not make: only editable contents are known.

    Args:
        path: folders of the packages of the environment.

    Raises:
        OSError: a folder is not there, or cannot be read.
    """
    folders = freeze(distributions(path=list(path))).folders
    sources = {name: read_source(folder, editable=True) for name, (folder, editable) in folders.items() if editable}
    versions = _read_versions(path)
    copied = (
        LocalPackage(name=name, version=versions[name], path=str(folder), editable=False, sha256=None, git=None)
        for name, (folder, editable) in folders.items()
        if not editable
    )
    return tuple(sorted((*find_local_packages(sources, path), *copied), key=lambda package: package.name))


def find_version(name: str, path: Sequence[str]) -> str | None:
    """The version of a package in an environment; None where it is not installed."""
    installed = next(iter(distributions(name=name, path=list(path))), None)
    return None if installed is None else installed.version


def _read_versions(path: Sequence[str]) -> dict[str, str]:
    versions: dict[str, str] = {}
    for found in distributions(path=list(path)):
        if name := found.metadata["Name"]:
            versions.setdefault(canonicalize_name(name), found.version)
    return versions
