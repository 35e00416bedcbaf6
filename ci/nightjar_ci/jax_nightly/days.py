"""The days of an index of nightly JAX wheels, and the choice of one that has every wheel.

In: the URL of a simple index with jax, jaxlib and the CUDA plugins, and the platforms that need wheels. Out: days, each
with one version per package, and the missing wheels of an incomplete day. The date of a wheel is read from its version,
`0.13.0.dev20261120`; the index needs no upload times.

Source: docs.jax.dev/en/latest/installation.html, "JAX nightly installation".
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from packaging.utils import parse_wheel_filename
from packaging.version import Version

from nightjar_ci.errors import InputError, NightjarError
from nightjar_ci.web.http import hide_passwords
from nightjar_ci.web.package_index import File, read_files, version_of

CUDA_VERSIONS = ("12", "13")
NAMES = (
    "jax",
    "jaxlib",
    *(f"jax-cuda{version}-{part}" for version in CUDA_VERSIONS for part in ("plugin", "pjrt")),
)
MACHINES = ("x86_64", "aarch64")
_DATED = re.compile(r"\.dev(20\d{2})(\d{2})(\d{2})$")
_INDEX_HINT = (
    "set NIGHTJAR_NIGHTLY_INDEX to the index that https://docs.jax.dev/en/latest/installation.html names for nightly "
    "wheels"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Day:
    """The wheels of one day.

    Attributes:
        versions: package to version; a package that the day lacks is absent.
    """

    date: str
    versions: Mapping[str, str]
    files: Mapping[str, tuple[File, ...]]

    def __str__(self) -> str:
        return f"JAX of {self.date}"

    def pin(self, python: str) -> tuple[str, ...]:
        """A requirement for each package, on this Python (such as `3.12`) and newer ones."""
        return tuple(
            f"{name}=={version} ; python_full_version >= '{python}'" for name, version in self.versions.items()
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The chosen day, and a message for each newer day that is incomplete."""

    day: Day
    refused: tuple[str, ...]


def read_days(index: str | None) -> tuple[Day, ...]:
    """The days of an index, oldest first; a package that the index lacks is absent from every day.

    Args:
        index: URL of a simple index; None if this machine has none.
    """
    if index is None:
        raise InputError(
            "NIGHTJAR_NIGHTLY_INDEX is not set, so no index of JAX's nightly wheels is known.", _INDEX_HINT
        )
    days: dict[str, dict[str, dict[Version, list[File]]]] = {}
    with ThreadPoolExecutor(len(NAMES)) as pool:
        pages = list(pool.map(lambda name: _read(name, index), NAMES))
    for name, files in zip(NAMES, pages, strict=True):
        for file in files:
            if file.yanked or not file.name.endswith(".whl"):
                continue
            version = version_of(name, file.name)
            if version is not None and (date := read_date(str(version))):
                days.setdefault(date, {}).setdefault(name, {}).setdefault(version, []).append(file)
    if not days:
        raise InputError(f"{hide_passwords(index)} has no nightly wheel of {' or '.join(NAMES[:2])}.", _INDEX_HINT)
    return tuple(_make_day(date, days[date]) for date in sorted(days))


def read_date(version: str) -> str | None:
    """The date of a nightly version; None for any other version.

    >>> read_date("0.13.0.dev20261120"), read_date("0.13.0")
    ('2026-11-20', None)
    """
    dated = _DATED.search(version)
    if dated is None:
        return None
    return "-".join(dated.groups())


def choose_day(days: Sequence[Day], pythons: Sequence[str], date: str | None = None) -> Choice:
    """The newest day with every wheel, or the day of a date.

    Args:
        pythons: versions that need wheels, such as `3.13`.
        date: the only acceptable date; None: the newest complete one.
    """
    wanted = [day for day in days if date in (None, day.date)]
    if not wanted:
        raise InputError(
            f"the index has no JAX of {date}: it has {days[0].date} to {days[-1].date}.", "choose another date"
        )
    refused: list[str] = []
    for day in reversed(wanted):
        gaps = find_gaps(day, pythons)
        if not gaps:
            return Choice(day=day, refused=tuple(refused))
        wheels = ", ".join(gaps[:3])
        if len(gaps) > 3:
            wheels += f" and {len(gaps) - 3} more"
        refused.append(f"{day} is incomplete: no wheel of {wheels}.")
    if date is not None:
        raise InputError(refused[0], "choose another date")
    raise InputError(f"no day is complete; {refused[0]}", _INDEX_HINT)


def find_gaps(day: Day, pythons: Sequence[str]) -> tuple[str, ...]:
    """The wheels that a day lacks, such as `jaxlib for Python 3.13 on aarch64`."""
    gaps = []
    for name in NAMES:
        wheels = {tag for file in day.files.get(name, ()) for tag in parse_wheel_filename(file.name)[3]}
        if name == "jax":
            if not wheels:
                gaps.append(name)
            continue
        for machine in MACHINES:
            interpreters = {tag.interpreter for tag in wheels if tag.platform.endswith(machine)}
            if name.endswith("pjrt"):  # one wheel for every Python
                if not interpreters:
                    gaps.append(f"{name} on {machine}")
                continue
            for python in pythons:
                if f"cp{python.replace('.', '')}" not in interpreters:
                    gaps.append(f"{name} for Python {python} on {machine}")
    return tuple(gaps)


def _make_day(date: str, wheels: Mapping[str, Mapping[Version, Sequence[File]]]) -> Day:
    newest = {name: max(versions) for name, versions in wheels.items()}
    return Day(
        date=date,
        versions={name: str(version) for name, version in newest.items()},
        files={name: tuple(wheels[name][version]) for name, version in newest.items()},
    )


def _read(name: str, index: str) -> list[File]:
    try:
        return read_files(name, index)
    except InputError:
        return []  # the index has no such package
    except NightjarError as error:
        raise NightjarError(error.message, _INDEX_HINT) from None
