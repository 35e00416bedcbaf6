"""The packages of an environment: pins, and packages that were installed from folders and files of this machine.

In: the current environment, or one that was made. Out: a `Frozen`, from which the same environment can be made again,
and the `LocalPackage`s of an outcome.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.utils import canonicalize_name

from nightjar_ci.environments.current import find_current
from nightjar_ci.environments.git_tree import read_git
from nightjar_ci.environments.sources import Source, read_source
from nightjar_ci.formats.run_record import LocalPackage


@dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    """Installed packages: pinned ones, and ones from a folder of this machine.

    Attributes:
        pins: canonical name to requirement, `numpy==2.4.6` or `name @ url`.
        folders: canonical name to the folder and whether it was installed editable.
    """

    pins: dict[str, str]
    folders: dict[str, tuple[Path, bool]]


def freeze(installed: Iterable[Distribution] | None = None) -> Frozen:
    """The packages of the current environment, or of `installed`; of duplicates the first, which Python imports.

    Packages of the Linux distribution are left out: no index has them. Packages of conda are pinned to their version:
    their recorded origin is a folder of the machine that built them.
    """
    pins: dict[str, str] = {}
    folders: dict[str, tuple[Path, bool]] = {}
    if installed is None:
        installed = distributions(path=list(find_current().path))
    for package in installed:
        raw_name = package.metadata["Name"]
        if not raw_name or _is_from_system(package):
            continue
        name = canonicalize_name(raw_name)
        if name in pins or name in folders:
            continue
        origin = _read_origin(package)
        url = urlsplit(origin.get("url", ""))
        if "dir_info" in origin and url.scheme == "file":
            folders[name] = Path(unquote(url.path)), bool(origin["dir_info"].get("editable"))
        elif origin:
            vcs = origin.get("vcs_info")
            address = f"{vcs['vcs']}+{origin['url']}@{vcs['commit_id']}" if vcs else origin["url"]
            below = f"#subdirectory={origin['subdirectory']}" if "subdirectory" in origin else ""
            pins[name] = f"{name} @ {address}{below}"
        else:
            pins[name] = f"{name}=={package.version}"
    return Frozen(pins=pins, folders=folders)


def _read_origin(distribution: Distribution) -> dict[str, Any]:
    """The recorded origin of a package that was not installed from an index (PEP 610); empty if there is none."""
    if _installer(distribution) == "conda":
        return {}
    origin: dict[str, Any] = json.loads(distribution.read_text("direct_url.json") or "{}")
    return origin


def _is_from_system(distribution: Distribution) -> bool:
    debian = Path(str(distribution.locate_file(""))) == Path("/usr/lib/python3/dist-packages")
    return debian or _installer(distribution) == "rpm"


def _installer(distribution: Distribution) -> str:
    return (distribution.read_text("INSTALLER") or "").strip()


def find_local_packages(sources: Mapping[str, Source], path: Sequence[str]) -> tuple[LocalPackage, ...]:
    return tuple(package for package in plan_local_packages(sources, path) if package.version is not None)


def plan_local_packages(sources: Mapping[str, Source], path: Sequence[str] = ()) -> tuple[LocalPackage, ...]:
    """The packages to install from this machine; their versions are known once they are built."""
    return tuple(
        LocalPackage(
            name=name,
            version=find_version(name, path),
            path=str(source.path),
            editable=source.editable,
            sha256=source.digest,
            git=read_git(source.path, (".",)),
        )
        for name, source in sorted(sources.items())
    )


def find_imported_packages(path: Sequence[str]) -> tuple[LocalPackage, ...]:
    """The packages from folders in an environment of the user's; only editable ones have known contents."""
    packages: list[LocalPackage] = []
    for name, (folder, editable) in sorted(freeze(distributions(path=list(path))).folders.items()):
        if editable:
            packages += plan_local_packages({name: read_source(folder, editable=True)}, path)
            continue
        version = find_version(name, path)
        packages.append(
            LocalPackage(name=name, version=version, path=str(folder), editable=False, sha256=None, git=None)
        )
    return tuple(packages)


def find_version(name: str, path: Sequence[str]) -> str | None:
    """The version of a package in an environment; None if it is not installed."""
    installed = next(iter(distributions(name=name, path=list(path))), None)
    if installed is None:
        return None
    return installed.version
