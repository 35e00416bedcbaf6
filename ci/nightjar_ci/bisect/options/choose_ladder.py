"""The choice of a ladder: options of `nightjar-ci bisect` become a `LadderChoice`.

In: the options. Out: a ladder that can be made, a description of it, and whether to look for a regression or a fix; or
an `InputError` that says which options do not go together. No package index or registry is asked yet.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from nightjar_ci.bisect.ladders.commits import find_place, is_ancestor, open_repository
from nightjar_ci.bisect.ladders.images import make_image_ladder
from nightjar_ci.bisect.ladders.packages import Base, make_package_ladder
from nightjar_ci.bisect.ladders.rung import PYTHON, Ladder, OnLine, make_listed_ladder, read_list
from nightjar_ci.bisect.ladders.several import Pin, complete_ends, make_history_ladder, make_merged_ladder
from nightjar_ci.bisect.ladders.timeline import releases_between
from nightjar_ci.bisect.options.options import BisectOptions
from nightjar_ci.bisect.options.question_inputs import digest_files
from nightjar_ci.bisect.state import Find
from nightjar_ci.environments.installed import freeze
from nightjar_ci.environments.local_requirements import parse_local
from nightjar_ci.environments.lock import read_pins, read_requirements
from nightjar_ci.environments.nightly_days import name_days
from nightjar_ci.environments.project import is_project, resolve_project
from nightjar_ci.environments.run_uv import find_index
from nightjar_ci.environments.uv import read_sources
from nightjar_ci.errors import InputError
from nightjar_ci.settings import Settings
from nightjar_ci.web.http import hide_passwords
from nightjar_ci.web.package_index import read_releases

MOST_RELEASES = 32  # before the bad end, to search for a good one
_INDEXES = ("-i ", "--index-url", "--extra-index-url", "-f ", "--find-links")
_FOLDER_NAME = re.compile(r"[A-Za-z0-9_][\w.-]*")

End = TypeVar("End")


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderChoice:
    """A ladder that can be made, and its description."""

    described: Mapping[str, str]
    find: Find
    make: partial[Ladder]


def choose_ladder(options: BisectOptions, settings: Settings, on_line: OnLine) -> LadderChoice:
    good, bad = (tuple(map(name_days, ends)) for ends in (options.good, options.bad))
    options = replace(options, good=good, bad=bad, with_=tuple(map(_name_local, options.with_)))
    ends = (*good, *bad)
    are_versions = options.rungs is None and bool(ends) and all("==" in end for end in ends)
    ladders = {
        "NAME==VERSION": (are_versions, _packages),
        "two lock files": (not options.rungs and len(ends) == 2 and all(map(os.path.isfile, ends)), _locks),
        "--images": (options.images is not None, _images),
        "--repo": (bool(options.repo) and not are_versions, choose_commits),
        "--rungs": (options.rungs is not None, _listed),
    }
    chosen = [name for name, (is_given, _) in ladders.items() if is_given]
    if len(chosen) != 1:
        named = " and ".join(chosen) or "none"
        expected = f"expected one of {', '.join(ladders)}"
        raise InputError(f"{named} of the ladders is named: {expected}.", "--good jax==0.4.31 --bad jax==0.5.0")
    if options.pin and chosen != ["--repo"]:
        raise InputError(f"--pin is for a ladder of commits, and this one is of {chosen[0]}.", "add --repo")
    _, choose = ladders[chosen[0]]
    return choose(options, settings, on_line)


def _name_local(line: str) -> str:
    """A requirement; of a folder or file with its name, since a lock has none of a bare path."""
    try:
        local = parse_local(line)
    except ValueError as error:
        raise InputError(f"--with: {error}.") from None
    return line if local is None else str(local.requirement)


def _packages(options: BisectOptions, settings: Settings, on_line: OnLine) -> LadderChoice:
    bad = _versions(options.bad, "--bad")
    good = _versions(options.good, "--good") or {name: _find_old(name, bad[name], settings) for name in bad}
    if set(good) != set(bad):
        raise InputError(f"--good names {', '.join(good)}, --bad {', '.join(bad) or 'nothing'}.",
                         "both ends need a version of every package")  # fmt: skip
    options = replace(options, with_=(*options.with_, *_extras((*options.good, *options.bad))))
    if options.current:
        frozen = freeze()
        pins = read_pins("\n".join(frozen.pins.values()))
        base = Base(wanted=options.with_, pins=pins, folders=frozen.folders, python=options.python, dated=False)
    elif is_project(options.environment):
        base = _project(options, set(good))
    else:
        base = Base(wanted=options.with_, python=options.python, dated=not options.any_date)
    return _choose_packages("packages", good, bad, base, settings, on_line)


def _find_old(name: str, bad: str, settings: Settings) -> str:
    if name == PYTHON:
        raise InputError("python has no good end.", f"name both: --good python==3.11 --bad python=={bad}")
    releases = read_releases(name, settings.index_url or find_index())
    earlier = [
        release for release in releases_between("0", bad, releases) if release.version != bad and not release.yanked
    ]
    if not earlier:
        raise InputError(f"{name} has no release before {bad}.", f"name a good end: --good {name}==VERSION")
    return earlier[-MOST_RELEASES:][0].version


def _project(options: BisectOptions, moving: Collection[str]) -> Base:
    """The packages of a project's environment, in versions that fit the moving ones."""
    lines, python = resolve_project(name_days(options.environment.removeprefix("project:")))
    wanted = []
    for line in lines:
        requirement = Requirement(line)
        if canonicalize_name(requirement.name) not in moving:
            wanted.append(requirement.name if requirement.url is None else line)
    return Base(wanted=(*wanted, *options.with_), python=options.python or python, dated=False)


def _locks(options: BisectOptions, settings: Settings, on_line: OnLine) -> LadderChoice:
    good, bad = (_read_lock(Path(end), on_line) for end in (*options.good, *options.bad))
    moving = [name for name in good if name in bad and good[name] != bad[name]]
    if alone := sorted(set(good) ^ set(bad)):
        on_line(f"in one of the lock files only, so installed where another package needs it: {', '.join(alone)}")
    pins = {name: version for name, version in good.items() if bad.get(name) == version}
    base = Base(wanted=options.with_, pins=pins, python=options.python, dated=False)
    good, bad = ({name: lock[name] for name in moving} for lock in (good, bad))
    return _choose_packages("locks", good, bad, base, settings, on_line)


def _choose_packages(
    kind: str, good: dict[str, str], bad: dict[str, str], base: Base, settings: Settings, on_line: OnLine
) -> LadderChoice:
    find = _direction(good, bad)
    old, new = by_age(good, bad, find)
    folders = sorted((name, (str(folder), editable)) for name, (folder, editable) in base.folders.items())
    sources = read_sources("current", base.wanted, base.folders, settings.environments_dir)
    contents = sorted((name, source.digest) for name, source in sources.items())  # an edit is another question
    described = {
        "what": "-".join(sorted(old)[:3]),
        "kind": kind,
        "old": str(sorted(old.items())),
        "new": str(sorted(new.items())),
        "base": str((base.wanted, sorted(base.pins.items()), folders, base.python, base.dated)),
        "contents": str(contents),
    }
    make = partial(make_package_ladder, old, new, base, settings.index_url, on_line)
    return LadderChoice(described=described, find=find, make=make)


def _images(options: BisectOptions, settings: Settings, on_line: OnLine) -> LadderChoice:
    assert options.images is not None
    good, bad = at_most_one(options.good, "--good"), one_end(options.bad, "--bad")
    find: Find = "regression"
    if good is not None and good[-10:] > bad[-10:]:
        find = "fix"
    old, new = by_age(good or "", bad, find)
    described = {"what": "images", "kind": "images", "source": hide_passwords(options.images), "old": old, "new": new}
    make = partial(make_image_ladder, options.images, old or None, new, on_line)
    return LadderChoice(described=described, find=find, make=make)


def _listed(options: BisectOptions, settings: Settings, on_line: OnLine) -> LadderChoice:
    assert options.rungs is not None
    path = options.rungs
    good = at_most_one(options.good, "--good")
    bad = at_most_one(options.bad, "--bad")
    find: Find = "regression"
    if good is not None and bad is not None:
        names = read_list(path)
        if good in names and bad in names and names.index(good) > names.index(bad):
            find = "fix"
    old, new = by_age(good, bad, find)
    described = {"what": path.stem, "kind": "listed", "old": old or "", "new": new or ""}
    described |= digest_files([str(path)], Path.cwd())
    return LadderChoice(described=described, find=find, make=partial(make_listed_ladder, path, old, new))


def _versions(ends: Sequence[str], option: str) -> dict[str, str]:
    versions: dict[str, str] = {}
    for end in ends:
        try:
            requirement = Requirement(end)
            (version,) = (part.version for part in requirement.specifier if part.operator == "==")
            versions[canonicalize_name(requirement.name)] = str(Version(version))
        except ValueError:  # an invalid requirement or version, or two versions
            raise InputError(f"{option}: {end!r} is not NAME==VERSION.") from None
    if len(versions) < len(ends):
        raise InputError(f"{option} names a package twice: {', '.join(ends)}.")
    return versions


def _extras(ends: Sequence[str]) -> dict[str, None]:
    """The requirements of extras, such as `jax[cuda12]`, that the ends name with a version."""
    named = map(Requirement, ends)
    return dict.fromkeys(f"{end.name}[{','.join(sorted(end.extras))}]" for end in named if end.extras)


def _direction(good: Mapping[str, str], bad: Mapping[str, str]) -> Find:
    moved = [name for name in good if good[name] != bad[name] and not {good[name][:1], bad[name][:1]} & {"@"}]
    if moved and all(Version(good[name]) > Version(bad[name]) for name in moved):
        return "fix"
    return "regression"


def _read_lock(path: Path, on_line: OnLine) -> dict[str, str]:
    try:
        lines = read_requirements(path)
        pins = read_pins("\n".join(lines))
    except (OSError, UnicodeDecodeError, InvalidRequirement) as error:
        raise InputError(f"{path}: cannot be read as a lock file: {str(error).splitlines()[0]}.") from None
    if not pins:
        raise InputError(f"{path}: there is no NAME==VERSION in it.")
    if any(line.startswith(_INDEXES) for line in lines):
        on_line(f"{path} names an index or a folder of wheels, which is not asked: UV_INDEX or UV_FIND_LINKS names it")
    return pins


def choose_commits(options: BisectOptions, settings: Settings, on_line: OnLine) -> LadderChoice:
    """The ladder of commits that the options name; a lone repository has an empty name."""
    if len(options.repo) == 1:
        if options.pin:
            raise InputError("--pin is for several repositories, and there is one.", "--repo jax=../jax --repo xla=...")
        folders = {"": open_repository(options.repo[0], settings.state_dir / "repositories")}
    else:
        folders = _open_repositories(options.repo, settings)
    pins = _parse_pins(options.pin, folders)
    described = {
        "what": "-".join(folders) or folders[""].name.removesuffix(".git"),
        "kind": "commits",
        "repository": _describe({name: str(folder) for name, folder in folders.items()}),
    }
    if len(folders) == 1 and (place := find_place(str(folders[""]))) != Path():
        described["place"] = str(place)
    if pins:
        described["pins"] = ",".join(map(str, pins))
    bad = complete_ends(folders, pins, _parse_ends(options.bad, "--bad", folders), "--bad")
    if not options.good:
        described |= {"old": "", "new": _describe(bad)}
        return LadderChoice(
            described=described, find="regression", make=partial(make_history_ladder, folders, pins, bad)
        )
    good = complete_ends(folders, pins, _parse_ends(options.good, "--good", folders), "--good")
    moving = [name for name in folders if good[name] != bad[name]]
    find: Find = "regression"
    if moving and all(is_ancestor(folders[name], bad[name], good[name]) for name in moving):
        find = "fix"
    old, new = by_age(good, bad, find)
    described |= {"old": _describe(old), "new": _describe(new)}
    return LadderChoice(described=described, find=find, make=partial(make_merged_ladder, folders, pins, old, new))


def _describe(values: Mapping[str, str]) -> str:
    return ",".join(f"{name}={value}" if name else value for name, value in values.items())


def _open_repositories(values: Sequence[str], settings: Settings) -> dict[str, Path]:
    named = split_named("--repo", values, "NAME=FOLDER_OR_ADDRESS", "jax=../jax --repo xla=../xla")
    for name, _ in named:
        if not _FOLDER_NAME.fullmatch(name):
            raise InputError(f"--repo: {name!r} is not the name of a folder.", "letters, digits, '_', '-' and '.'")
    return {name: open_repository(address, settings.state_dir / "repositories") for name, address in named}


def _parse_pins(values: Sequence[str], folders: Mapping[str, Path]) -> list[Pin]:
    named = split_named("--pin", values, "NAME:PATH", "jax:third_party/xla/revision.bzl", folders, several=True)
    for _, path in named:
        if Path(path).is_absolute() or ".." in Path(path).parts:
            raise InputError(f"--pin: {path!r} is not a path in a repository.", "it is below its top folder")
    return [Pin(holder=name, path=path.strip("/")) for name, path in named]


def _parse_ends(values: Sequence[str], option: str, folders: Mapping[str, Path]) -> dict[str, str]:
    if list(folders) == [""]:
        return {"": one_end(values, option)}
    return dict(split_named(option, values, "NAME=REV", f"{next(iter(folders))}=main", folders))


def split_named(
    option: str,
    values: Sequence[str],
    form: str,
    example: str,
    known: Collection[str] = (),
    *,
    several: bool = False,
) -> list[tuple[str, str]]:
    """Names and the value of each.

    Args:
        form: such as `NAME=REV`; its first non-letter separates the two.
        known: the repositories that may be named; any if empty.
        several: a name may have several values.

    >>> split_named("--pin", ["jax:third_party/xla"], "NAME:PATH", "")
    [('jax', 'third_party/xla')]
    """
    separator = next(letter for letter in form if not letter.isalpha())
    named: list[tuple[str, str]] = []
    for value in values:
        name, _, text = value.partition(separator)
        if not (name and text):
            raise InputError(f"{option}: {value!r} is not {form}.", f"{option} {example}")
        if known and name not in known:
            raise InputError(f"{option}: {name!r} is not a --repo: expected one of {', '.join(known)}.")
        if not several and name in dict(named):
            raise InputError(f"{option}: {name!r} is named twice.")
        named.append((name, text))
    return named


def parse_sources(values: Sequence[str]) -> dict[str, str]:
    named = split_named("--repo", values, "NAME=FOLDER_OR_ADDRESS", "jax=../jax")
    return {canonicalize_name(name): address for name, address in named}


def by_age(good: End, bad: End, find: Find) -> tuple[End, End]:
    """The old end and the new one: the bad end is the old one in a search for a fix."""
    if find == "fix":
        return bad, good
    return good, bad


def at_most_one(ends: Sequence[str], option: str) -> str | None:
    if not ends:
        return None
    return one_end(ends, option)


def one_end(ends: Sequence[str], option: str) -> str:
    if len(ends) != 1:
        raise InputError(f"{option}: expected once for this ladder, found {len(ends)} times.")
    return ends[0]
