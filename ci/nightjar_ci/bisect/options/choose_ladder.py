"""The choice of a ladder: options of `nightjar-ci bisect` become a `LadderChoice`.

In: the options. Out: a ladder that can be made, a description of it, and whether to look for a regression or a fix; or
an `InputError` that says which options do not go together. No package index or registry is asked yet.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from nightjar_ci.bisect.ladders.commits import is_ancestor, open_repository
from nightjar_ci.bisect.ladders.images import make_image_ladder
from nightjar_ci.bisect.ladders.listed import make_listed_ladder, read_list
from nightjar_ci.bisect.ladders.packages import Base, make_package_ladder
from nightjar_ci.bisect.ladders.rung import PYTHON, Ladder
from nightjar_ci.bisect.ladders.several import Pin, complete_ends, make_history_ladder, make_merged_ladder
from nightjar_ci.bisect.ladders.timeline import releases_between
from nightjar_ci.bisect.options.options import BisectOptions, LadderChoice, at_most_one, by_age, one_end, split_named
from nightjar_ci.bisect.options.question_inputs import digest_files
from nightjar_ci.bisect.probing.rung_setup import OnLine
from nightjar_ci.bisect.state import Find
from nightjar_ci.environments.installed import freeze
from nightjar_ci.environments.lock import read_pins
from nightjar_ci.environments.nightly_days import name_days
from nightjar_ci.environments.project import is_project, resolve_project
from nightjar_ci.environments.uv import find_index, read_sources
from nightjar_ci.errors import InputError
from nightjar_ci.settings import Settings
from nightjar_ci.web.http import hide_passwords
from nightjar_ci.web.package_index import read_releases

MOST_RELEASES = 32  # before the bad end, to search for a good one


def choose_ladder(options: BisectOptions, settings: Settings, on_line: OnLine) -> LadderChoice:
    good, bad = (tuple(map(name_days, ends)) for ends in (options.good, options.bad))
    options = replace(options, good=good, bad=bad)
    ends = (*good, *bad)
    given = {
        "--package": _has_packages(options),
        "two lock files": not options.rungs and len(ends) == 2 and all(Path(end).is_file() for end in ends),
        "--images": options.images is not None,
        "--repo": bool(options.repo) and not _has_packages(options),
        "--rungs": options.rungs is not None,
    }
    chosen = [name for name, is_given in given.items() if is_given]
    if len(chosen) != 1:
        named = " and ".join(chosen) or "none"
        expected = f"expected one of {', '.join(given)}"
        raise InputError(f"{named} of the ladders is named: {expected}.", "--package jax --good 0.4.31 --bad 0.5.0")
    if options.pin and chosen != ["--repo"]:
        raise InputError(f"--pin is for a ladder of commits, and this one is of {chosen[0]}.", "add --repo")
    makers = {
        "--package": _packages,
        "two lock files": _locks,
        "--images": _images,
        "--repo": choose_commits,
        "--rungs": _listed,
    }
    return makers[chosen[0]](options, settings, on_line)


def _has_packages(options: BisectOptions) -> bool:
    return bool(options.package) or (bool(options.good) and all("==" in end for end in (*options.good, *options.bad)))


def _packages(options: BisectOptions, settings: Settings, on_line: OnLine) -> LadderChoice:
    good: dict[str, str] = {}
    if options.good:
        good = _versions(options, options.good, "--good")
    bad = _versions(options, options.bad, "--bad")
    if not good:
        good = {name: _find_old(name, version, settings) for name, version in bad.items()}
    if set(good) != set(bad):
        raise InputError(f"--good names {', '.join(good) or 'nothing'}, --bad {', '.join(bad) or 'nothing'}.",
                         "both ends need a version of every package")  # fmt: skip
    find = _direction(good, bad)
    if options.current:
        base = _current(options)
    elif is_project(options.environment):
        base = _project(options, set(good))
    else:
        base = Base(wanted=options.with_, python=options.python, dated=not options.any_date)
    return _choose_packages("packages", good, bad, find, base, settings, on_line)


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


def _current(options: BisectOptions) -> Base:
    frozen = freeze()
    pins = read_pins("\n".join(frozen.pins.values()))
    folders = {name: (str(folder), editable) for name, (folder, editable) in frozen.folders.items()}
    return Base(wanted=options.with_, pins=pins, folders=folders, python=options.python, dated=False)


def _project(options: BisectOptions, moving: Collection[str]) -> Base:
    """The packages of a project's environment, in versions that fit the moving ones."""
    lines, python = resolve_project(name_days(options.environment.removeprefix("project:")))
    wanted = []
    for line in lines:
        requirement = Requirement(line)
        if requirement.url is not None:
            wanted.append(line)
        elif canonicalize_name(requirement.name) not in moving:
            wanted.append(requirement.name)
    return Base(wanted=(*wanted, *options.with_), python=options.python or python, dated=False)


def _locks(options: BisectOptions, settings: Settings, on_line: OnLine) -> LadderChoice:
    good, bad = (_read_lock(Path(end)) for end in (*options.good, *options.bad))
    moving = [name for name in good if name in bad and good[name] != bad[name]]
    if alone := sorted(set(good) ^ set(bad)):
        on_line(f"in one of the lock files only, so installed where another package needs it: {', '.join(alone)}")
    pins = {name: version for name, version in good.items() if bad.get(name) == version}
    base = Base(wanted=options.with_, pins=pins, python=options.python, dated=False)
    ends = {name: good[name] for name in moving}, {name: bad[name] for name in moving}
    return _choose_packages("locks", *ends, _direction(*ends), base, settings, on_line)


def _choose_packages(
    what: str,
    good: dict[str, str],
    bad: dict[str, str],
    find: Find,
    base: Base,
    settings: Settings,
    on_line: OnLine,
) -> LadderChoice:
    old, new = by_age(good, bad, find)
    described = {
        "what": "-".join(sorted(old)[:3]),
        "kind": what,
        "old": str(sorted(old.items())),
        "new": str(sorted(new.items())),
        "base": str((base.wanted, sorted(base.pins.items()), sorted(base.folders.items()), base.python, base.dated)),
        "contents": str(_read_digests(base, settings)),
    }
    make = partial(_make_packages, old, new, base, settings, on_line)
    return LadderChoice(described=described, find=find, make=make)


def _read_digests(base: Base, settings: Settings) -> list[tuple[str, str]]:
    """Digests of the folders that every rung is installed from: an edit makes it another bisection."""
    folders = {name: (Path(folder), editable) for name, (folder, editable) in base.folders.items()}
    sources = read_sources("current", (), folders, settings.environments_dir)
    return sorted((name, source.digest) for name, source in sources.items())


def _make_packages(
    old: Mapping[str, str], new: Mapping[str, str], base: Base, settings: Settings, on_line: OnLine
) -> Ladder:
    return make_package_ladder(old, new, base, settings.index_url or find_index(), on_line)


def _images(options: BisectOptions, settings: Settings, on_line: OnLine) -> LadderChoice:
    assert options.images is not None
    bad = one_end(options.bad, "--bad")
    described = {"what": "images", "kind": "images", "source": hide_passwords(options.images), "old": "", "new": bad}
    if not options.good:
        make = partial(make_image_ladder, options.images, None, bad, on_line)
        return LadderChoice(described=described, find="regression", make=make)
    good = one_end(options.good, "--good")
    old, new = sorted((good, bad), key=lambda end: end[-10:])
    described |= {"old": old, "new": new}
    find: Find = "fix"
    if old == good:
        find = "regression"
    return LadderChoice(
        described=described, find=find, make=partial(make_image_ladder, options.images, old, new, on_line)
    )


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


def _versions(options: BisectOptions, ends: Sequence[str], option: str) -> dict[str, str]:
    """The version of each package at one end: `0.4.31` for the only package, `jax==0.4.31` for any."""
    names = [canonicalize_name(name) for name in options.package]
    versions: dict[str, str] = {}
    for end in ends:
        if "==" not in end:
            if len(names) != 1:
                raise InputError(
                    f"{option}: whose version is {end!r}?", f"{option} {names[0] if names else 'jax'}=={end}"
                )
            versions[names[0]] = _version(end, option)
            continue
        try:
            requirement = Requirement(end)
        except InvalidRequirement:
            raise InputError(f"{option}: {end!r} is no NAME==VERSION.") from None
        exact = [part.version for part in requirement.specifier if part.operator == "=="]
        if len(exact) != 1:
            raise InputError(f"{option}: {end!r} is no NAME==VERSION.")
        versions[canonicalize_name(requirement.name)] = _version(exact[0], option)
    for name in names:
        if name not in versions and len(ends) == 1 and "==" not in ends[0]:
            versions[name] = _version(ends[0], option)
    if not versions:
        raise InputError(f"{option} is missing.", f"{option} VERSION, or {option} NAME==VERSION for several packages")
    return versions


def _version(text: str, option: str) -> str:
    try:
        return str(Version(text))
    except InvalidVersion:
        raise InputError(f"{option}: {text!r} is no version.") from None


def _direction(good: Mapping[str, str], bad: Mapping[str, str]) -> Find:
    moved = [name for name in good if good[name] != bad[name] and not {good[name][:1], bad[name][:1]} & {"@"}]
    if moved and all(Version(good[name]) > Version(bad[name]) for name in moved):
        return "fix"
    return "regression"


def _read_lock(path: Path) -> dict[str, str]:
    try:
        pins = read_pins(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, InvalidRequirement) as error:
        raise InputError(f"{path}: cannot be read as a lock file: {str(error).splitlines()[0]}.") from None
    if not pins:
        raise InputError(f"{path}: there is no NAME==VERSION in it.")
    return pins


_FOLDER_NAME = re.compile(r"[A-Za-z0-9_][\w.-]*")


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
    _refuse_twice("--repo", [name for name, _ in named])
    return {name: open_repository(address, settings.state_dir / "repositories") for name, address in named}


def _parse_pins(values: Sequence[str], folders: Mapping[str, Path]) -> list[Pin]:
    named = split_named("--pin", values, "NAME:PATH", "jax:third_party/xla/revision.bzl")
    _refuse_unknown("--pin", [name for name, _ in named], folders)
    for _, path in named:
        if Path(path).is_absolute() or ".." in Path(path).parts:
            raise InputError(f"--pin: {path!r} is not a path in a repository.", "it is below its top folder")
    return [Pin(holder=name, path=path.strip("/")) for name, path in named]


def _parse_ends(values: Sequence[str], option: str, folders: Mapping[str, Path]) -> dict[str, str]:
    if list(folders) == [""]:
        return {"": one_end(values, option)}
    named = split_named(option, values, "NAME=REV", f"{next(iter(folders))}=main")
    names = [name for name, _ in named]
    _refuse_unknown(option, names, folders)
    _refuse_twice(option, names)
    return dict(named)


def _refuse_unknown(option: str, names: Sequence[str], folders: Mapping[str, Path]) -> None:
    unknown = [name for name in names if name not in folders]
    if unknown:
        raise InputError(f"{option}: {unknown[0]!r} is not a --repo: expected one of {', '.join(folders)}.")


def _refuse_twice(option: str, names: Sequence[str]) -> None:
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise InputError(f"{option}: {twice[0]!r} is named {names.count(twice[0])} times.")
