"""The choice of a ladder of commits, of one repository or of several.

In: the options. Out: a ladder that can be made. The ends of several repositories are named one by one, or one names the
others' commits by a pin.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from nightjar_ci.bisect.ladders.commits import is_ancestor, open_repository
from nightjar_ci.bisect.ladders.several import Pin, complete_ends, make_history_ladder, make_merged_ladder
from nightjar_ci.bisect.options.options import BisectOptions, LadderChoice, by_age, one_end, split_named
from nightjar_ci.bisect.probing.rung_setup import OnLine
from nightjar_ci.bisect.state import Find
from nightjar_ci.errors import InputError
from nightjar_ci.settings import Settings

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
