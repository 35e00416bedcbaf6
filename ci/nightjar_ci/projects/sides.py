"""The two environments of a trial.

In: the environment of a project's tests, the current environment, the releases of JAX, and the user's options. Out: a
`Sides`: the environment before, the one after, and the reason in words. Only JAX differs between them if possible: with
JAX installed, the current environment is compared with a copy that has another JAX; without, the newest release is
compared with the one that the project's lock, its CI or its last release knew, or else with the release before.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from nightjar_ci.environments.current import find_current
from nightjar_ci.environments.declared import read_declared
from nightjar_ci.environments.installed import find_version, freeze
from nightjar_ci.environments.prepare import with_requirements
from nightjar_ci.environments.project import is_package
from nightjar_ci.environments.run_uv import run_uv
from nightjar_ci.environments.sources import read_text
from nightjar_ci.errors import EnvironmentFailedError, InputError
from nightjar_ci.web.package_index import File, group, version_of

INSTALLED = "current"
_LOCKS = ("uv.lock", "pylock.toml", "poetry.lock", "pdm.lock")
_PINNING = (".github/workflows/*.y*ml", ".gitlab-ci.yml", "requirements*.txt", "requirements/*.txt")
_LOCKED = re.compile(r"""^name = "jax"\nversion = "([^"]+)\"""", re.MULTILINE)  # as uv, Poetry and PDM write it
_PIN = re.compile(r"\bjax(?:\[[\w,-]*\])?==(\d[\w.]*)")
_LONG_AGO = timedelta(days=365)  # an older JAX may not work with the packages of today, which did not exist then


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """The environments that a trial compares.

    Attributes:
        base: the environment without the versions that differ.
    """

    before: str
    after: str
    why: str
    base: str

    def with_jax_before(self, version: str) -> Sides:
        return replace(self, before=with_requirements(self.base, f"jax=={version}"))


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownJax:
    """A JAX under which a project was tested."""

    version: str
    why: str


def find_installed_jax(folder: Path) -> str | None:
    """The JAX of the current environment, if a project's tests can run there as it is; else None.

    It must have JAX, pytest and the project itself, installed from its folder.
    """
    try:
        current = find_current()
    except EnvironmentFailedError:
        return None
    jax = find_version("jax", current.path)
    if jax is None or find_version("pytest", current.path) is None:
        return None
    name = read_declared(folder).get("name")
    if is_package(folder) and isinstance(name, str):
        origin = freeze().folders.get(canonicalize_name(name))
        if origin is None or origin[0].resolve() != folder.resolve():
            return None
    return jax


def list_releases(files: Iterable[File], python: str) -> list[str]:
    """The releases of JAX for a Python, oldest first, without pre-releases and yanked ones."""
    return [str(version) for version, needs in _read_needs(files) if needs.contains(python)]


def find_newer(files: Iterable[File], python: str) -> str | None:
    """A note on the newest release of JAX, if it is not for this Python; None also if no release is for it.

    >>> needs = {"jax-0.10.2.tar.gz": ">=3.11", "jax-0.12.0.tar.gz": ">=3.12"}
    >>> files = [File(name=name, uploaded=None, yanked=False, requires_python=needs[name]) for name in needs]
    >>> find_newer(files, "3.11.7")  # doctest: +ELLIPSIS
    'JAX 0.12.0 needs Python >=3.12: with this Python 3.11 the newest is 0.10.2; `uv venv --python ">=3.12"` makes ...'
    """
    releases = _read_needs(files)
    suitable = [version for version, needs in releases if needs.contains(python)]
    if not suitable or suitable[-1] == releases[-1][0]:
        return None
    newest, needs = releases[-1]
    series = ".".join(python.split(".")[:2])
    note = f"JAX {newest} needs Python {needs}: with this Python {series} the newest is {suitable[-1]}"
    return f'{note}; `uv venv --python "{needs}"` makes an environment for it, to activate before `nightjar-ci try`'


def find_python_version(needs: str) -> str | None:
    """The version of a matching Python on this machine, found by uv; None if there is none."""
    words = ("--no-project", "--no-python-downloads", "--show-version", needs)
    try:
        return run_uv("uv", "python", "find", *words).strip() or None
    except EnvironmentFailedError:
        return None


def _read_needs(files: Iterable[File]) -> list[tuple[Version, SpecifierSet]]:
    needs: dict[Version, SpecifierSet] = {}
    for file in files:
        version = version_of("jax", file.name)
        if version is None or version.is_prerelease or file.yanked:
            continue
        try:
            needs[version] = SpecifierSet(file.requires_python or "")
        except InvalidSpecifier:
            continue
    return sorted(needs.items(), key=lambda release: release[0])


def find_known_jax(folder: Path, releases: Sequence[str]) -> KnownJax | None:
    """The newest JAX in a project's locks, or else in its CI and its files of requirements, that can be installed."""
    for names, pattern in ((_LOCKS, _LOCKED), (_PINNING, _PIN)):
        pinned = [
            (Version(version), path)
            for name in names
            for path in sorted(folder.glob(name))
            for version in pattern.findall(read_text(path))
            if version in releases
        ]
        if pinned:
            version, path = max(pinned)
            return KnownJax(version=str(version), why=f"the newest JAX in {path.relative_to(folder)}")
    return None


def find_jax_at_release(
    name: str, own: Iterable[File], jax: Iterable[File], releases: Sequence[str]
) -> KnownJax | None:
    """The newest JAX when a project was last released, unless that is long ago."""
    uploads = [
        (release.uploaded, release) for release in group("jax", jax) if release.version in releases and release.uploaded
    ]
    last = next(reversed(group(name, own)), None)
    if last is None or last.uploaded is None:
        return None
    earlier = [release for uploaded, release in uploads if uploaded <= last.uploaded]
    if not earlier or max(uploaded for uploaded, _ in uploads) - last.uploaded > _LONG_AGO:
        return None
    return KnownJax(version=earlier[-1].version, why=f"the newest JAX when {name} {last.version} was released")


def choose_sides(
    environment: str,
    installed: str | None,
    releases: Sequence[str],
    *,
    wanted: str | None,
    against: str | None,
    known: KnownJax | None = None,
) -> Sides:
    """The environments to compare.

    Args:
        installed: JAX of the current environment, if the tests can run in it.
        wanted: `--with`: requirements of the side after; default: the newest JAX.
        against: `--against`: requirements or an environment of the side before; default: as it is installed.

    >>> choose_sides("project:.,jax", None, ["0.10.1", "0.12.0", "0.12.0.1"], wanted=None, against=None).before
    'project:.,jax,jax==0.10.1'
    >>> choose_sides("project:.,jax", "0.9.0", ["0.10.1", "0.10.2"], wanted=None, against=None).after
    'uv:jax==0.10.2'
    """
    if not releases:
        raise InputError("the package index has no release of jax for this Python.")
    base = INSTALLED if installed is not None else environment
    try:
        after = with_requirements(base, wanted or f"jax=={releases[-1]}")
        if against is not None:
            before = against
            if against != INSTALLED and not against.startswith(("uv:", "project:")):
                before = with_requirements(base, against)
            return Sides(before=before, after=after, why="as --against says", base=base)
        pinned = _PIN.search(wanted or f"jax=={releases[-1]}")
        if pinned is None:
            return Sides(before=base, after=after, why="the same without --with", base=base)
        tried = pinned[1]
        if installed is not None and (wanted is not None or _series(installed) < _series(tried)):
            return Sides(before=base, after=after, why="your environment, and a copy of it with another JAX", base=base)
        earlier = [version for version in releases if _series(version) < _series(tried)]
        if not earlier:
            raise InputError(f"jax {tried} has no earlier release.", "--against names another environment")
        why = f"jax {tried} and jax {earlier[-1]}, the release before"
        version = earlier[-1]
        if known is not None and _series(known.version) < _series(tried):
            why, version = f"jax {tried} and jax {known.version}, {known.why}", known.version
        before = with_requirements(base, f"jax=={version}")
        return Sides(before=before, after=after if installed is None else INSTALLED, why=why, base=base)
    except ValueError as error:
        given = ", ".join(repr(text) for text in (wanted, against) if text is not None)
        problem = str(error).partition("\n")[0]
        raise InputError(f"{given}: {problem}.", "expected for example --with jax==0.10.1") from None


def _series(version: str) -> tuple[int, ...]:
    """The part of a version that a post release shares: 0.12.0.1 repairs the wheels of 0.12.0."""
    return Version(version).release[:3]
