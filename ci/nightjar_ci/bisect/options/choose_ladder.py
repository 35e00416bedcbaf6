"""The choice of a ladder: options of `nightjar-ci bisect` become a `Rope`.

In: the options, as `Asked`. Out: a ladder that can be made, a description of it, and whether a regression or a fix is
looked for; or an `InputError` that says which options do not go together. No package index or registry is asked yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from nightjar_ci.bisect.ladders.commits import find_commit, is_ancestor, make_commit_ladder, open_repository
from nightjar_ci.bisect.ladders.images import make_image_ladder
from nightjar_ci.bisect.ladders.listed import make_listed_ladder, position
from nightjar_ci.bisect.ladders.packages import Base, make_package_ladder, parse_lock
from nightjar_ci.bisect.ladders.rung import Ladder
from nightjar_ci.bisect.options.question_inputs import digest_files
from nightjar_ci.bisect.probing.rung_setup import OnLine
from nightjar_ci.bisect.state import Find
from nightjar_ci.environments.installed import freeze
from nightjar_ci.environments.uv import find_index, read_sources
from nightjar_ci.errors import InputError
from nightjar_ci.formats.run_record import Better
from nightjar_ci.settings import Settings
from nightjar_ci.web.http import hide_passwords


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The options, as they are given (`nightjar-ci bisect --help`).

    Attributes:
        current: all packages that do not move are those of this environment, its folders included.
    """

    command: tuple[str, ...]
    good: tuple[str, ...] = ()
    bad: tuple[str, ...] = ()
    package: tuple[str, ...] = ()
    wanted: tuple[str, ...] = ()
    good_lock: Path | None = None
    bad_lock: Path | None = None
    images: str | None = None
    repository: str | None = None
    rungs: Path | None = None
    prepare: str | None = None
    install: bool = False
    environment: str = "current"
    python: str | None = None
    dated: bool = True
    current: bool = False
    metric: str | None = None
    metric_regex: str | None = None
    better: Better = "lower"
    judge: str | None = None
    policies: Path | None = None
    baselines: Path | None = None
    cell: str = ""
    rtol: float | None = None
    paired: bool | None = None
    bad_too: tuple[str, ...] = ()
    executor: str | None = None
    workers: int | None = None
    timeout_s: float = 600.0
    confidence: float = 0.99
    deterministic: bool = False
    max_tests: int = 400
    pass_env: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """A ladder that can be made, and what it is called."""

    described: Mapping[str, str]
    find: Find
    make: partial[Ladder]
    repository: Path | None = None


def find_rope(asked: Asked, settings: Settings, on_line: OnLine) -> Rope:
    """The ladder that the options name.

    Raises:
        InputError: they name none or several, or its ends are missing or of another kind.
    """
    given = {
        "--package": bool(asked.package)
        or (bool(asked.good) and all("==" in end for end in (*asked.good, *asked.bad))),
        "--good-lock": asked.good_lock is not None or asked.bad_lock is not None,
        "--images": asked.images is not None,
        "--repo": asked.repository is not None,
        "--rungs": asked.rungs is not None,
    }
    chosen = [name for name, there in given.items() if there]
    if len(chosen) != 1:
        found = " and ".join(chosen) if chosen else "none"
        expected = f"expected one of {', '.join(given)}"
        raise InputError(f"{found} of the ladders is named: {expected}.", "--package jax --good 0.4.31 --bad 0.5.0")
    makers = {
        "--package": _packages,
        "--good-lock": _locks,
        "--images": _images,
        "--repo": _commits,
        "--rungs": _listed,
    }
    return makers[chosen[0]](asked, settings, on_line)


def _packages(asked: Asked, settings: Settings, on_line: OnLine) -> Rope:
    good, bad = (_versions(asked, ends, name) for ends, name in ((asked.good, "--good"), (asked.bad, "--bad")))
    if set(good) != set(bad):
        raise InputError(f"--good names {', '.join(good) or 'nothing'}, --bad {', '.join(bad) or 'nothing'}.",
                         "both ends need a version of every package")  # fmt: skip
    find = _direction(good, bad)
    base = _current(asked) if asked.current else Base(wanted=asked.wanted, python=asked.python, dated=asked.dated)
    return _rope_of_packages("packages", good, bad, find, base, settings, on_line)


def _current(asked: Asked) -> Base:
    """All that is installed here."""
    frozen = freeze()
    pins = parse_lock("\n".join(frozen.pins.values()))
    folders = {name: (str(folder), editable) for name, (folder, editable) in frozen.folders.items()}
    return Base(wanted=asked.wanted, pins=pins, folders=folders, python=asked.python, dated=False)


def _locks(asked: Asked, settings: Settings, on_line: OnLine) -> Rope:
    if asked.good_lock is None or asked.bad_lock is None:
        raise InputError("--good-lock and --bad-lock belong together.")
    good, bad = (_read_lock(path) for path in (asked.good_lock, asked.bad_lock))
    moving = [name for name in good if name in bad and good[name] != bad[name]]
    if alone := sorted(set(good) ^ set(bad)):
        on_line(f"in one of the lock files only, so installed where another package needs it: {', '.join(alone)}")
    pins = {name: version for name, version in good.items() if bad.get(name) == version}
    base = Base(wanted=asked.wanted, pins=pins, python=asked.python, dated=False)
    ends = {name: good[name] for name in moving}, {name: bad[name] for name in moving}
    return _rope_of_packages("locks", *ends, _direction(*ends), base, settings, on_line)


def _rope_of_packages(
    what: str,
    good: dict[str, str],
    bad: dict[str, str],
    find: Find,
    base: Base,
    settings: Settings,
    on_line: OnLine,
) -> Rope:
    old, new = (good, bad) if find == "regression" else (bad, good)
    described = {
        "what": "-".join(sorted(old)[:3]),
        "kind": what,
        "old": str(sorted(old.items())),
        "new": str(sorted(new.items())),
        "base": str((base.wanted, sorted(base.pins.items()), sorted(base.folders.items()), base.python, base.dated)),
        "contents": str(_read_digests(base, settings)),
    }
    make = partial(_climb_packages, old, new, base, settings, on_line)
    return Rope(described=described, find=find, make=make)


def _read_digests(base: Base, settings: Settings) -> list[tuple[str, str]]:
    """What the folders hold that every rung is installed from: edited, they are another bisection."""
    folders = {name: (Path(folder), editable) for name, (folder, editable) in base.folders.items()}
    sources = read_sources("current", (), folders, settings.environments_dir)
    return sorted((name, source.digest) for name, source in sources.items())


def _climb_packages(
    old: Mapping[str, str], new: Mapping[str, str], base: Base, settings: Settings, on_line: OnLine
) -> Ladder:
    return make_package_ladder(old, new, base, settings.index_url or find_index(), on_line)


def _images(asked: Asked, settings: Settings, on_line: OnLine) -> Rope:
    assert asked.images is not None
    good, bad = _one(asked.good, "--good"), _one(asked.bad, "--bad")
    old, new = sorted((good, bad), key=lambda end: end[-10:])
    described = {"what": "images", "kind": "images", "source": hide_passwords(asked.images), "old": old, "new": new}
    find: Find = "regression" if old == good else "fix"
    return Rope(described=described, find=find, make=partial(make_image_ladder, asked.images, old, new, on_line))


def _commits(asked: Asked, settings: Settings, on_line: OnLine) -> Rope:
    assert asked.repository is not None
    repository = open_repository(asked.repository, settings.state_dir / "repositories")
    good, bad = (find_commit(repository, _one(*ends)) for ends in ((asked.good, "--good"), (asked.bad, "--bad")))
    find: Find = "regression" if is_ancestor(repository, good, bad) or not is_ancestor(repository, bad, good) else "fix"
    old, new = (good, bad) if find == "regression" else (bad, good)
    described = {"what": repository.name.removesuffix(".git"), "kind": "commits", "repository": str(repository)}
    described |= {"old": old, "new": new}
    make = partial(make_commit_ladder, repository, old, new)
    return Rope(described=described, find=find, make=make, repository=repository)


def _listed(asked: Asked, settings: Settings, on_line: OnLine) -> Rope:
    assert asked.rungs is not None
    path = asked.rungs
    good = _one(asked.good, "--good") if asked.good else None
    bad = _one(asked.bad, "--bad") if asked.bad else None
    fix = good is not None and bad is not None and position(path, good) > position(path, bad)
    old, new = (bad, good) if fix else (good, bad)
    described = {"what": path.stem, "kind": "listed", "old": old or "", "new": new or ""}
    described |= digest_files([str(path)], Path.cwd())
    return Rope(
        described=described, find="fix" if fix else "regression", make=partial(make_listed_ladder, path, old, new)
    )


def _versions(asked: Asked, ends: Sequence[str], option: str) -> dict[str, str]:
    """The version of each package at one end: `0.4.31` for the only package, `jax==0.4.31` for any."""
    names = [canonicalize_name(name) for name in asked.package]
    found: dict[str, str] = {}
    for end in ends:
        if "==" not in end:
            if len(names) != 1:
                raise InputError(
                    f"{option}: whose version is {end!r}?", f"{option} {names[0] if names else 'jax'}=={end}"
                )
            found[names[0]] = _version(end, option)
            continue
        try:
            requirement = Requirement(end)
        except InvalidRequirement:
            raise InputError(f"{option}: {end!r} is no NAME==VERSION.") from None
        exact = [one.version for one in requirement.specifier if one.operator == "=="]
        if len(exact) != 1:
            raise InputError(f"{option}: {end!r} is no NAME==VERSION.")
        found[canonicalize_name(requirement.name)] = _version(exact[0], option)
    for name in names:
        if name not in found and len(ends) == 1 and "==" not in ends[0]:
            found[name] = _version(ends[0], option)
    if not found:
        raise InputError(f"{option} is missing.", f"{option} VERSION, or {option} NAME==VERSION for several packages")
    return found


def _version(text: str, option: str) -> str:
    try:
        return str(Version(text))
    except InvalidVersion:
        raise InputError(f"{option}: {text!r} is no version.") from None


def _direction(good: Mapping[str, str], bad: Mapping[str, str]) -> Find:
    moved = [name for name in good if good[name] != bad[name] and not {good[name][:1], bad[name][:1]} & {"@"}]
    return "fix" if moved and all(Version(good[name]) > Version(bad[name]) for name in moved) else "regression"


def _read_lock(path: Path) -> dict[str, str]:
    try:
        pins = parse_lock(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, InvalidRequirement) as error:
        raise InputError(f"{path}: cannot be read as a lock file: {str(error).splitlines()[0]}.") from None
    if not pins:
        raise InputError(f"{path}: there is no NAME==VERSION in it.")
    return pins


def _one(ends: Sequence[str], option: str) -> str:
    if len(ends) != 1:
        raise InputError(f"{option}: expected once for this ladder, found {len(ends)} times.")
    return ends[0]
