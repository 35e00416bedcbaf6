"""The days of an index of nightly JAX wheels, the choice of one that has every wheel, and the commits that it has.

In: the URL of a simple index with jax, jaxlib and the CUDA plugins, and the images that need wheels. Out: days, each
with one version per package, and the missing wheels of an incomplete day. The date of a wheel is read from its version,
`0.13.0.dev20261120`; the index needs no upload times. JAX's commit is in its wheel, XLA's in a file of that commit.

Source: docs.jax.dev/en/latest/installation.html, "JAX nightly installation"; jax/version.py (`_git_hash`) and
third_party/xla/revision.bzl (`XLA_COMMIT`) of jax-ml/jax.
"""

from __future__ import annotations

import hashlib
import io
import re
import zipfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from packaging.utils import parse_wheel_filename
from packaging.version import Version

from nightjar_ci.errors import InputError, NightjarError
from nightjar_ci.web.http import HttpError, hide_passwords, request
from nightjar_ci.web.package_index import File, read_files, version_of

CUDA_VERSIONS = ("12", "13")
NAMES = (
    "jax",
    "jaxlib",
    *(f"jax-cuda{version}-{part}" for version in CUDA_VERSIONS for part in ("plugin", "pjrt")),
)
_DATED = re.compile(r"\.dev(20\d{2})(\d{2})(\d{2})$")
_INDEX_HINT = (
    "set NIGHTJAR_NIGHTLY_INDEX to the index that https://docs.jax.dev/en/latest/installation.html names for nightly "
    "wheels"
)
_REVISION = "https://raw.githubusercontent.com/jax-ml/jax/{commit}/third_party/xla/revision.bzl"
_JAX_COMMIT = re.compile(rb"^_git_hash\b.*['\"]([0-9a-f]{40})['\"]", re.MULTILINE)
_XLA_COMMIT = re.compile(rb"^XLA_COMMIT\s*=\s*\"([0-9a-f]{40})\"", re.MULTILINE)


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
        """A requirement for each package, on this Python (such as `3.12`) and newer ones.

        No release may take the place of a package that the day lacks: what needs that does not resolve.
        """
        jax = self.versions["jax"]
        return tuple(f"{name}=={self.versions.get(name, jax)} ; python_full_version >= '{python}'" for name in NAMES)


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


@dataclass(frozen=True, slots=True)
class Target:
    """An image that needs wheels.

    Attributes:
        flavor: `cpu` or, such as `cuda12`, that of CUDA plugins.
        python: its version, such as `3.13`.
    """

    flavor: str
    python: str
    machine: str

    def needs(self, package: str) -> bool:
        return package in NAMES[:2] or package.startswith(f"jax-{self.flavor}-")


def choose_day(days: Sequence[Day], targets: Sequence[Target], date: str | None = None) -> Choice:
    """The newest day with every wheel, or the day of a date.

    Args:
        targets: what needs wheels.
        date: the only acceptable date; None: the newest complete one.
    """
    wanted = [day for day in days if date in (None, day.date)]
    if not wanted:
        raise InputError(
            f"the index has no JAX of {date}: it has {days[0].date} to {days[-1].date}.", "choose another date"
        )
    refused: list[str] = []
    for day in reversed(wanted):
        gaps = find_gaps(day, targets)
        if not gaps:
            return Choice(day=day, refused=tuple(refused))
        wheels = ", ".join(gaps[:3])
        if len(gaps) > 3:
            wheels += f" and {len(gaps) - 3} more"
        refused.append(f"{day} is incomplete: no wheel of {wheels}.")
    if date is not None:
        raise InputError(refused[0], "choose another date, or with --for the images that you build")
    raise InputError(f"no day is complete; {refused[0]}", _INDEX_HINT)


def find_gaps(day: Day, targets: Sequence[Target]) -> tuple[str, ...]:
    """The wheels that a day lacks, such as `jaxlib for Python 3.13 on aarch64`."""
    gaps: dict[str, None] = {}  # each once
    for name in NAMES:
        wheels = {tag for file in day.files.get(name, ()) for tag in parse_wheel_filename(file.name)[3]}
        for target in targets:
            if not target.needs(name):
                continue
            interpreters = {tag.interpreter for tag in wheels if tag.platform.endswith(target.machine)}
            if name == "jax":
                gap, exists = name, bool(wheels)
            elif name.endswith("pjrt"):  # one wheel for every Python
                gap, exists = f"{name} on {target.machine}", bool(interpreters)
            else:
                gap = f"{name} for Python {target.python} on {target.machine}"
                exists = f"cp{target.python.replace('.', '')}" in interpreters
            if not exists:
                gaps[gap] = None
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


def find_jax_commit(day: Day) -> str | None:
    """The commit of JAX; None if its wheel names none."""
    wheel = day.files["jax"][0]
    try:
        body, _ = request(wheel.url)
        if wheel.sha256 is not None and (digest := hashlib.sha256(body).hexdigest()) != wheel.sha256:
            raise NightjarError(f"{wheel.name}: its SHA-256 is {digest}, but the index says {wheel.sha256}.")
        with zipfile.ZipFile(io.BytesIO(body)) as archive:
            text = archive.read("jax/version.py")
    except HttpError as error:
        raise NightjarError(f"{error}.") from None
    except (OSError, zipfile.BadZipFile) as error:
        raise NightjarError(f"{wheel.name} is not a readable wheel: {error}.") from None
    except KeyError:
        return None
    return _find_commit(_JAX_COMMIT, text)


def find_xla_commit(jax_commit: str) -> str | None:
    """The commit of XLA that a commit of JAX is built with; None if GitHub does not answer or has none."""
    try:
        text, _ = request(_REVISION.format(commit=jax_commit))
    except HttpError:
        return None
    return _find_commit(_XLA_COMMIT, text)


def _find_commit(pattern: re.Pattern[bytes], text: bytes) -> str | None:
    found = pattern.search(text)
    return None if found is None else found[1].decode()
