"""Environments made from a lock with the current JAX: `uv:docker/locks/ecosystem/diffrax.txt[,jax==0.10.1]`.

In: a lock with hashes, made by `nightjar-ci images lock` from the `.in` file next to it, and requirements that override
it. Out: a virtual environment with exactly the locked packages and this checkout's `nightjar-models`.

JAX is the current environment's. If the lock has another version, the other packages are resolved again around it. The
packages that the `.in` file names keep their locked version unless a requirement overrides it: a pass with an older
version that happens to fit would prove nothing. A conflict is an error that names the packages.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from nightjar_ci.environments.current import find_current
from nightjar_ci.environments.installed import find_version, freeze
from nightjar_ci.environments.local_requirements import find_locals, make_editable
from nightjar_ci.environments.nightly_days import complete_day, name_days
from nightjar_ci.environments.sources import read_source
from nightjar_ci.environments.uv import (
    make_pinned,
    parse_requirement,
    parse_requirements,
    resolve,
    split_requirements,
)
from nightjar_ci.errors import EnvironmentFailedError

WORKLOADS = "nightjar-models"  # the package whose commands run there; its own dependencies are in the lock
_INCLUDED = re.compile(r"(-r|--requirement|-c|--constraint|-f|--find-links)[ =]\s*(\S+)")


def parse_lock(text: str) -> tuple[Path, tuple[Requirement, ...]] | None:
    """The lock file and the requirements that override it; None if the text names no lock file.

    >>> parse_lock("locks/a.txt,jax==0.10.1")
    (PosixPath('locks/a.txt'), (<Requirement('jax==0.10.1')>,))
    >>> parse_lock("jax==0.10.1")
    """
    first, comma, rest = text.partition(",")
    if not first.endswith(".txt"):
        return None
    if not comma:
        return Path(first), ()
    return Path(first), parse_requirements(rest)


def split_python(requirements: Sequence[Requirement]) -> tuple[str | None, tuple[Requirement, ...]]:
    """The Python that `python==3.12` names, and the requirements that are packages.

    >>> split_python(parse_requirements("python==3.12,jax==0.10.1"))
    ('3.12', (<Requirement('jax==0.10.1')>,))
    """
    pythons = [requirement for requirement in requirements if requirement.name == "python"]
    if not pythons:
        return None, tuple(requirements)
    exact = [part.version for python in pythons for part in python.specifier if part.operator == "=="]
    if len(exact) != 1 or len(pythons[0].specifier) != 1:
        raise ValueError(f"{', '.join(map(str, pythons))} is not one version: expected for example python==3.12")
    return exact[0], tuple(requirement for requirement in requirements if requirement.name != "python")


def is_locked(environment: str) -> bool:
    kind, _, rest = environment.partition(":")
    return kind == "uv" and parse_lock(rest) is not None


def read_pins(lock: str, python: str | None = None) -> dict[str, str]:
    """The version, or `@ ADDRESS`, of each package that a lock gives a Python (the current one if None), by name.

    >>> read_pins("Jax==0.5.0 \\\\\\n    --hash=sha256:00\\n# via x\\nfoo @ https://host/foo.whl\\n")
    {'jax': '0.5.0', 'foo': '@ https://host/foo.whl'}
    """
    pins: dict[str, str] = {}
    for line in lock.replace("\\\n", " ").splitlines():
        text = re.split(r"\s--hash|\s#", line)[0].strip()
        if not text or text[0] in "-#./~" or ("/" in text and "@" not in text):
            continue  # an option, a comment or a path
        pinned = Requirement(text)
        if pinned.marker is not None and not pinned.marker.evaluate(_python_of_markers(python)):
            continue
        exact = [part.version for part in pinned.specifier if part.operator in ("==", "===")]
        if pinned.url is not None:
            pins[canonicalize_name(pinned.name)] = f"@ {pinned.url}"
        elif exact:
            pins[canonicalize_name(pinned.name)] = exact[0]
    return pins


def _python_of_markers(python: str | None) -> dict[str, str]:
    version = python or find_current().version
    if version.count(".") == 1:
        version += ".0"
    return {"python_full_version": version, "python_version": ".".join(version.split(".")[:2])}


def find_changes(
    pins: Mapping[str, str], requirements: Sequence[Requirement], current: Mapping[str, str]
) -> dict[str, str]:
    """The requirements that the lock does not satisfy: the given ones, and the current JAX.

    >>> find_changes({"jax": "1", "numpy": "2"}, parse_requirements("numpy==3"), {"jax": "1"})
    {'numpy': 'numpy==3'}
    """
    wanted = {name: Requirement(f"{name}=={version}") for name, version in current.items() if name in pins}
    for requirement in requirements:
        name = canonicalize_name(requirement.name)
        if name == "jax":
            wanted.pop("jaxlib", None)  # jax itself requires its jaxlib
        wanted[name] = requirement
    return {
        name: str(requirement)
        for name, requirement in wanted.items()
        if name not in pins or requirement.url or not requirement.specifier.contains(pins[name], prereleases=True)
    }


def make_locked(text: str, cache: Path, on_line: Callable[[str], None] | None = None) -> Path:
    """The environment of a lock, made unless it exists already."""
    text = name_days(text)
    parsed = parse_lock(text)
    assert parsed is not None
    path, requirements = parsed
    try:
        lock = "\n".join(read_requirements(path))
    except OSError as error:
        hint = "paths are relative to the working directory; `nightjar-ci images lock` makes the locks"
        raise EnvironmentFailedError(f"uv:{text}: {error.filename} cannot be read: {error.strerror}.", hint) from None
    chosen = find_locals([*split_requirements(text)[1:], *lock.splitlines()])
    python, requirements = split_python(requirements)
    pins = {name: pin for name, pin in read_pins(lock, python).items() if not pin.startswith("@")}
    installed = read_current_jax() if python is None else {}  # another Python may have no release of this JAX
    changes = find_changes(pins, requirements, installed)
    folders = {name: origin for name, origin in freeze().folders.items() if name == WORKLOADS}
    made_with = [folder for name, (folder, _) in folders.items() if f"{name} (" in lock]
    lines = lock.splitlines()
    if changes:
        lines = resolve_around(path, pins, changes, made_with, python)
    lines = make_editable(lines, chosen)
    return make_pinned(f"uv:{text}", lines, folders, cache, python=python, resolved=True, on_line=on_line)


def read_requirements(path: Path, including: tuple[Path, ...] = ()) -> list[str]:
    """The lines of a requirements file and of the files that it includes.

    Constraints and wheel folders (`--find-links`) get a comment with the digest of their contents.
    """
    lines = []
    including = (*including, path.resolve())
    for line in path.read_text(encoding="utf-8").splitlines():
        included = _INCLUDED.match(line.strip())
        if included is None:
            lines.append(line)
            continue
        option, value = included.groups()
        target = (path.parent / value).resolve()
        if option in ("-r", "--requirement"):
            if target in including:
                raise OSError(errno.ELOOP, "it includes itself", str(target))
            lines += read_requirements(target, including)
        elif "://" in value:
            lines.append(line)
        else:
            lines += [f"# sha256:{read_source(target).digest}", f"{option} {target}"]
    return lines


def read_current_jax() -> dict[str, str]:
    """The versions of jax and jaxlib in the current environment; empty unless it has both."""
    path = find_current().path
    versions = {name: version for name in ("jax", "jaxlib") if (version := find_version(name, path)) is not None}
    if len(versions) < 2:
        return {}
    return versions


def resolve_around(
    path: Path,
    pins: Mapping[str, str],
    changes: Mapping[str, str],
    projects: Sequence[Path] = (),
    python: str | None = None,
) -> list[str]:
    """The lock's packages, resolved again around other versions of some of them.

    Args:
        path: the lock, with these pins; the `.in` file next to it holds the original requirements.
        changes: requirements that override the lock, by name.
    """
    source = path.with_suffix(".in")
    try:
        wanted, unchanged = read_wanted(source, changes)
    except OSError as error:
        problem = f"{path} does not satisfy {', '.join(changes.values())}, and its source {source} cannot be read"
        raise EnvironmentFailedError(f"{problem}: {error.strerror}.") from None
    wanted += [requirement for name, requirement in changes.items() if name not in pins]  # the lock lacks it
    wanted += [f"{WORKLOADS} @ {folder.as_uri()}" for folder in projects]
    kept = [f"{name}=={pins[name]}" for name in unchanged if name in pins]
    options = ["--no-emit-package", WORKLOADS]
    if python is not None:
        options += ["--no-python-downloads", "--python-version", python]
    return resolve(
        f"uv:{','.join([str(path), *changes.values()])}",
        wanted,
        *options,
        prefer=[f"{name}=={version}" for name, version in pins.items()],
        constraints=complete_day([*kept, *changes.values()]),
    ).splitlines()


def read_wanted(source: Path, changes: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """The requirements of an `.in` file, with the changes replacing its versions, and the names of the unchanged."""
    wanted: list[str] = []
    unchanged: list[str] = []
    for line in source.read_text(encoding="utf-8").splitlines():
        text = line.partition("#")[0].strip()
        if text.startswith("-r "):
            wanted.append(f"-r {(source.parent / text.removeprefix('-r ').strip()).resolve()}")
        elif text:
            requirement = parse_requirement(text)
            name = canonicalize_name(requirement.name)
            if name in changes:
                extras, requirement = requirement.extras, Requirement(changes[name])
                requirement.extras |= extras
            else:
                unchanged.append(name)
            wanted.append(str(requirement))
    return wanted, unchanged
