"""The two environments of a trial.

In: the environment of a project's tests, the current environment, the releases of JAX, and the user's options. Out: a
`Sides`: the environment before, the one after, and the reason in words. Only JAX differs between them if possible: with
JAX installed, the current environment is compared with a copy that has another JAX; without, the newest release is
compared with the release before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from nightjar_ci.environments.current import find_current
from nightjar_ci.environments.declared import read_declared
from nightjar_ci.environments.installed import find_version, freeze
from nightjar_ci.environments.prepare import with_requirements
from nightjar_ci.environments.project import is_package
from nightjar_ci.environments.uv import run_uv
from nightjar_ci.errors import EnvironmentFailedError, InputError
from nightjar_ci.web.package_index import File, version_of

INSTALLED = "current"
CRASHING = ("0.10.2",)  # releases with crashes that a newer one has fixed


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """The environments that a trial compares.

    Attributes:
        before: environment of the first side; None if there is nothing to compare with.
        after: environment of the second side.
        why: the reason for these, for people.
    """

    before: str | None
    after: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Newer:
    """A release of JAX too new for the Python in use.

    Attributes:
        version: of JAX.
        needs: its required Pythons, from its files.
        note: the same, for people.
    """

    version: str
    needs: str
    note: str


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


def find_newer(files: Iterable[File], python: str) -> Newer | None:
    """The newest release of JAX, if it is not for this Python; None also if no release is for it.

    >>> needs = {"jax-0.10.2.tar.gz": ">=3.11", "jax-0.12.0.tar.gz": ">=3.12"}
    >>> files = [File(name=name, uploaded=None, yanked=False, requires_python=needs[name]) for name in needs]
    >>> find_newer(files, "3.11.7").note  # doctest: +ELLIPSIS
    'JAX 0.12.0 needs Python 3.12 or newer: with this Python 3.11 the newest is 0.10.2, whose programs ...'
    """
    files = list(files)
    releases = list_releases(files, python)
    if not releases:
        return None
    newest, needs = max(_read_needs(files), key=lambda release: release[0])
    if newest <= Version(releases[-1]):
        return None
    floor = re.fullmatch(r">=([\d.]+)", str(needs))
    pythons = str(needs) if floor is None else f"{floor[1]} or newer"
    note = f"JAX {newest} needs Python {pythons}: "
    note += f"with this Python {python_series(python)} the newest is {releases[-1]}"
    if releases[-1] in CRASHING:
        note += ", whose programs can crash on x86 with arrays of seven or more dimensions (jax-ml/jax#39257)"
    return Newer(version=str(newest), needs=str(needs), note=note)


def python_series(version: str) -> str:
    """The major and minor version of a Python.

    >>> python_series("3.12.3")
    '3.12'
    """
    return ".".join(version.split(".")[:2])


def find_python(needs: str) -> str | None:
    """The path of a matching Python on this machine, found by uv; None if there is none."""
    return _find(needs)


def find_python_version(needs: str) -> str | None:
    return _find("--show-version", needs)


def _find(*words: str) -> str | None:
    try:
        return run_uv("uv", "python", "find", "--no-project", "--no-python-downloads", *words).strip() or None
    except EnvironmentFailedError:
        return None


def _read_needs(files: Iterable[File]) -> list[tuple[Version, SpecifierSet]]:
    """The releases of JAX and the Pythons that each is for, oldest first."""
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


def choose_sides(
    environment: str, installed: str | None, releases: list[str], *, wanted: str | None, against: str | None
) -> Sides:
    """The environments to compare.

    Args:
        installed: JAX of the current environment, if the tests can run in it.
        releases: of JAX, oldest first.
        wanted: `--with`: requirements of the side after; default: the newest JAX.
        against: `--against`: requirements or an environment of the side before; default: as it is installed.

    >>> choose_sides("project:.,jax", None, ["0.10.1", "0.10.2"], wanted=None, against=None).before
    'project:.,jax,jax==0.10.1'
    >>> choose_sides("project:.,jax", "0.9.0", ["0.10.1", "0.10.2"], wanted=None, against=None).after
    'uv:jax==0.10.2'
    """
    if not releases:
        raise InputError("the package index has no release of jax for this Python.")
    base = INSTALLED if installed is not None else environment
    newest = releases[-1]
    try:
        after = with_requirements(base, wanted or f"jax=={newest}")
        if against is not None:
            named = _names_environment(against)
            return Sides(
                before=against if named else with_requirements(base, against), after=after, why="as --against says"
            )
        if installed is not None and wanted is None and Version(installed) >= Version(newest):
            why = f"the installed JAX {installed} is the newest for this Python: "
            why += "--against jax==VERSION compares it with another"
            return Sides(before=None, after=INSTALLED, why=why)
        if installed is not None:
            return Sides(before=INSTALLED, after=after, why="your environment, and a copy of it with another JAX")
        if len(releases) < 2:
            raise InputError(f"jax {newest} has no earlier release.", "--against names another environment")
        why = "JAX, pytest and this project are not all in the current environment: two fresh ones"
        return Sides(before=with_requirements(base, f"jax=={releases[-2]}"), after=after, why=why)
    except ValueError as error:
        given = ", ".join(repr(text) for text in (wanted, against) if text is not None)
        problem = str(error).partition("\n")[0]
        raise InputError(f"{given}: {problem}.", "expected for example --with jax==0.10.1") from None


def _names_environment(text: str) -> bool:
    return text == INSTALLED or text.startswith(("uv:", "project:"))
