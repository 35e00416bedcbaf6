"""Environments made from a lock with tonight's JAX: `uv:docker/locks/ecosystem/diffrax.txt[,jax==0.10.1]`.

In: a lock with hashes, made by `nightjar-ci images lock` from the `.in` file beside it, and requirements that override
it. Out: a virtual environment with exactly the locked packages and this checkout's `nightjar-models`.

JAX is tonight's. If the current environment has another version than the lock, the other packages are resolved again
around it. The packages that the `.in` file names keep their locked version, unless a requirement asks for another: a
pass with an older version that happens to fit would prove nothing. A conflict is an error that says which package wants
what.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import distributions
from pathlib import Path

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from nightjar_ci.environments.current import find_current
from nightjar_ci.environments.installed import Frozen as Frozen
from nightjar_ci.environments.installed import freeze
from nightjar_ci.environments.local_requirements import find_locals, make_editable
from nightjar_ci.environments.sources import Source, read_source
from nightjar_ci.environments.uv import (
    make_pinned,
    parse_requirement,
    parse_requirements,
    read_sources,
    run_uv,
    split_requirements,
)
from nightjar_ci.errors import EnvironmentFailedError

WORKLOADS = "nightjar-models"  # the package whose commands run in there; its own dependencies are in the lock
_INCLUDED = re.compile(r"(-r|--requirement|-c|--constraint|-f|--find-links)[ =]\s*(\S+)")
_PIN = re.compile(r"^([A-Za-z0-9][\w.-]*)==([^\s;\\]+)(?: ; ([^\\\n]+?))?(?: \\)?$", re.MULTILINE)


def parse_lock(text: str) -> tuple[Path, tuple[Requirement, ...]] | None:
    """The lock file and the requirements that win over it; None where the text names no lock file.

    Raises:
        ValueError: a requirement is not valid.

    >>> parse_lock("locks/a.txt,jax==0.10.1")
    (PosixPath('locks/a.txt'), (<Requirement('jax==0.10.1')>,))
    >>> parse_lock("jax==0.10.1")
    """
    first, comma, rest = text.partition(",")
    if not first.endswith(".txt"):
        return None
    return Path(first), parse_requirements(rest) if comma else ()


def is_locked(environment: str) -> bool:
    """Whether an environment is that of a lock, and not a copy of the current one."""
    kind, _, rest = environment.partition(":")
    return kind == "uv" and parse_lock(rest) is not None


def read_pins(lock: str) -> dict[str, str]:
    """The versions that a lock gives this Python on this machine, by canonical name.

    >>> read_pins('jax==1 ; python_version < "3" \\\\\\njax==2 ; python_version >= "3" \\\\\\n    --hash=sha256:0\\n')
    {'jax': '2'}
    """
    return {
        canonicalize_name(name): pinned
        for name, pinned, marker in _PIN.findall(lock)
        if not marker or Marker(marker).evaluate(_python_of_markers())
    }


def _python_of_markers() -> dict[str, str]:
    version = find_current().version
    return {"python_full_version": version, "python_version": ".".join(version.split(".")[:2])}


def find_changes(
    pins: Mapping[str, str], requirements: Sequence[Requirement], tonight: Mapping[str, str]
) -> dict[str, str]:
    """The requirements that the lock does not meet: those asked for, and tonight's JAX.

    Args:
        pins: versions of the lock.
        requirements: asked for by name; they win.
        tonight: versions of the current environment that every cell takes.

    >>> find_changes({"jax": "1", "numpy": "2"}, parse_requirements("numpy==3"), {"jax": "1"})
    {'numpy': 'numpy==3'}
    """
    wanted = {name: Requirement(f"{name}=={found}") for name, found in tonight.items() if name in pins}
    for requirement in requirements:
        name = canonicalize_name(requirement.name)
        if name == "jax":
            wanted.pop("jaxlib", None)  # jax itself asks for the jaxlib that it goes with
        wanted[name] = requirement
    return {
        name: str(requirement)
        for name, requirement in wanted.items()
        if name not in pins or requirement.url or not requirement.specifier.contains(pins[name], prereleases=True)
    }


def make_locked(text: str, cache: Path, on_line: Callable[[str], None] | None = None) -> Path:
    """The environment of a lock, made unless it is there already.

    Args:
        text: the lock file, then requirements, separated by commas.
        cache: the folder of all environments.
        on_line: called with one line of progress for every step.

    Returns:
        The environment's folder.

    Raises:
        EnvironmentFailedError: the lock cannot be read, resolved with what is asked for, or installed.
    """
    parsed = parse_lock(text)
    if parsed is None:
        raise EnvironmentFailedError(f"uv:{text}: expected a lock file that ends with .txt.")
    path, requirements = parsed
    try:
        lock = "\n".join(read_requirements(path))
        chosen = find_locals([*split_requirements(text)[1:], *lock.splitlines()])
    except UnicodeDecodeError as error:
        raise EnvironmentFailedError(f"uv:{text}: {path} is not a lock: {error}.") from None
    except ValueError as error:
        raise EnvironmentFailedError(f"uv:{text}: {error}.") from None
    except OSError as error:
        hint = "paths are relative to the working directory; `nightjar-ci images lock` makes the locks"
        raise EnvironmentFailedError(f"uv:{text}: {error.filename} cannot be read: {error.strerror}.", hint) from None
    try:
        pins = read_pins(lock)
    except ValueError as error:
        said = str(error).partition("\n")[0]
        hint = "`nightjar-ci images lock` makes the locks; this one was edited, or cut short"
        raise EnvironmentFailedError(f"uv:{text}: {path} has a marker that is not valid: {said}.", hint) from None
    changes = find_changes(pins, requirements, read_tonight())
    folders = {name: origin for name, origin in freeze().folders.items() if name == WORKLOADS}
    made_with = [folder for name, (folder, _) in folders.items() if f"{name} (" in lock]
    lines = lock.splitlines() if not changes else resolve_around(path, lock, changes, made_with)
    lines = make_editable(lines, {name: local for name, local in chosen.items() if local.editable})
    return make_pinned(text, lines, folders, cache, resolved=True, on_line=on_line)


def find_planned_sources(text: str, cache: Path) -> dict[str, Source]:
    """What the folders and files that an environment names, itself or in its lock, hold now, by package.

    Raises:
        EnvironmentFailedError: one is not there, or cannot be read.
    """
    parts = split_requirements(text)
    if parse_lock(text) is None:
        return read_sources(text, parts, {}, cache)
    try:
        lines = read_requirements(Path(parts[0]))
    except OSError as error:
        raise EnvironmentFailedError(f"uv:{text}: {error.filename} cannot be read: {error.strerror}.") from None
    return read_sources(text, [*parts[1:], *lines], {}, cache)


def read_requirements(path: Path) -> list[str]:
    """The lines of a requirements file with those of the files that it includes.

    Constraints and folders of wheels (`--find-links`) count by their contents: a comment holds their digest.

    Raises:
        OSError: one cannot be read.
    """
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        included = _INCLUDED.match(line.strip())
        option, value = ("", "") if included is None else included.groups()
        place = (path.parent / value).resolve()
        if option in ("-r", "--requirement"):
            lines += read_requirements(place)
        elif option and "://" not in value:
            lines += [f"# sha256:{read_source(place).digest}", f"{option} {place}"]
        else:
            lines.append(line)
    return lines


def read_tonight() -> dict[str, str]:
    """The versions of JAX in the current environment; none where it has no JAX."""
    path = list(find_current().path)
    installed = {name: next(iter(distributions(name=name, path=path)), None) for name in ("jax", "jaxlib")}
    versions = {name: found.version for name, found in installed.items() if found is not None}
    return versions if len(versions) == len(installed) else {}


def resolve_around(path: Path, lock: str, changes: Mapping[str, str], projects: Sequence[Path] = ()) -> list[str]:
    """The lock's packages, resolved once more around other versions of a few.

    Args:
        path: the lock; the `.in` file beside it names what is wanted.
        lock: its text.
        changes: requirements that win, by name.
        projects: folders of projects whose dependencies are in the lock.

    Raises:
        EnvironmentFailedError: nothing fits; the message says which package wants what.
    """
    pins = read_pins(lock)
    source = path.with_suffix(".in")
    try:
        wanted = [*read_wanted(source, changes), *(f"{WORKLOADS} @ {folder.as_uri()}" for folder in projects)]
    except OSError as error:
        asked = ", ".join(changes.values())
        why = f"{path} holds other versions than {asked}, and {source}, which names what is to be kept, cannot be read"
        raise EnvironmentFailedError(f"{why}: {error.strerror}.") from None
    kept = [f"{name}=={pins[name]}" for name in read_names(source) if name in pins and name not in changes]
    with tempfile.TemporaryDirectory() as folder:
        asked_for, constraints, found = (Path(folder) / name for name in ("wanted.in", "constraints.txt", "found.txt"))
        asked_for.write_text("\n".join(wanted) + "\n", encoding="utf-8")
        constraints.write_text("\n".join([*kept, *changes.values()]) + "\n", encoding="utf-8")
        found.write_text(
            "".join(f"{name}=={one}\n" for name, one in pins.items()), encoding="utf-8"
        )  # uv keeps what fits
        try:
            run_uv(
                str(path),
                *("pip", "compile", "--quiet", "--no-annotate", "--no-header", "--no-emit-index-url"),
                *("--no-emit-package", WORKLOADS),
                *(str(asked_for), "--constraints", str(constraints), "--output-file", str(found)),
            )
        except EnvironmentFailedError as error:
            if "No solution found" not in error.message:
                raise
            raise EnvironmentFailedError(f"cannot resolve: {render_conflict(error.message, path, changes)}") from None
        return found.read_text(encoding="utf-8").splitlines()


def read_wanted(source: Path, changes: Mapping[str, str]) -> list[str]:
    """The requirements of an `.in` file, with the changes in place of its versions: what is asked for wins."""
    wanted = []
    for line in _read_lines(source):
        if line.startswith("-r "):
            wanted.append(f"-r {(source.parent / line.removeprefix('-r ').strip()).resolve()}")
            continue
        requirement = parse_requirement(line)
        if (change := changes.get(canonicalize_name(requirement.name))) is not None:
            extras, requirement = requirement.extras, Requirement(change)
            requirement.extras |= extras
        wanted.append(str(requirement))
    return wanted


def read_names(source: Path) -> list[str]:
    """The packages that an `.in` file itself names."""
    lines = [line for line in _read_lines(source) if not line.startswith("-r ")]
    return [canonicalize_name(parse_requirement(line).name) for line in lines]


def _read_lines(source: Path) -> list[str]:
    lines = (line.partition("#")[0].strip() for line in source.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line]


def render_conflict(said: str, path: Path, changes: Mapping[str, str]) -> str:
    """What uv said about a conflict, its reason first: `xlb==0.3.1 wants jax<0.10`.

    >>> said = "hint Because a==1 depends on jax<2 and you require jax==2, we can conclude that a==1 cannot be used."
    >>> render_conflict(said, Path("a.txt"), {"jax": "jax==2"}).partition(chr(10))[0]
    'a==1 wants jax<2 (a.txt with jax==2).'
    """
    joined = " ".join(line.strip(" │├╰─▶") for line in said.splitlines())
    wants = [
        f"{who} wants {what}"
        for who, what in re.findall(r"(?:[Bb]ecause|and) (\S+) depends on ([^,]*?)(?:,| and |$)", joined)
    ]
    absent = [f"there is no {what}" for what in re.findall(r"there (?:is|are) no versions? of (\S+)", joined)]
    asked = f"({path} with {', '.join(changes.values())})"
    return f"{'; '.join(dict.fromkeys([*wants, *absent])) or 'no versions fit together'} {asked}.\n{said}"
