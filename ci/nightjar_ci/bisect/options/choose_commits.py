"""The choice of a ladder of commits, of one repository or of several.

In: the options. Out: a ladder that can be made. The ends of several repositories are named one by one, or one names the
others' commits by a pin.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from nightjar_ci.bisect.ladders.commits import make_commit_ladder, make_history_ladder
from nightjar_ci.bisect.ladders.diverged import add_picks, find_picks
from nightjar_ci.bisect.ladders.history import find_commit, is_ancestor, open_repository
from nightjar_ci.bisect.ladders.pins import Pin, complete_ends
from nightjar_ci.bisect.ladders.rung import Ladder
from nightjar_ci.bisect.ladders.several import Repositories, make_merged_history_ladder, make_merged_ladder
from nightjar_ci.bisect.options.ladder_choice import LadderChoice, by_age, one_end
from nightjar_ci.bisect.options.named_values import split_named
from nightjar_ci.bisect.options.options import BisectOptions
from nightjar_ci.bisect.probing.rung_setup import OnLine
from nightjar_ci.bisect.state import Find
from nightjar_ci.errors import InputError
from nightjar_ci.settings import Settings

_FOLDER_NAME = re.compile(r"[A-Za-z0-9_][\w.-]*")


def choose_commits(options: BisectOptions, settings: Settings, on_line: OnLine) -> LadderChoice:
    """The ladder of commits that the options name."""
    if len(options.repo) > 1:
        return _choose_several(options, settings)
    if options.pin:
        raise InputError("--pin is for several repositories, and there is one.", "--repo jax=../jax --repo xla=../xla")
    return _choose_lone(options, settings)


def _choose_lone(options: BisectOptions, settings: Settings) -> LadderChoice:
    repository = open_repository(options.repo[0], settings.state_dir / "repositories")
    described = {"what": repository.name.removesuffix(".git"), "kind": "commits", "repository": str(repository)}
    picks = find_picks(repository, options.cherry_pick)
    if picks:
        described["picks"] = ",".join(picks)
    if not options.good:
        bad = find_commit(repository, one_end(options.bad, "--bad"))
        return LadderChoice(
            described={**described, "old": "", "new": bad},
            find="regression",
            make=partial(_make_history, repository, bad, picks),
        )
    good, bad = (find_commit(repository, one_end(*ends)) for ends in ((options.good, "--good"), (options.bad, "--bad")))
    find: Find = "fix"
    if is_ancestor(repository, good, bad) or not is_ancestor(repository, bad, good):
        find = "regression"
    old, new = by_age(good, bad, find)
    described |= {"old": old, "new": new}
    return LadderChoice(described=described, find=find, make=partial(_make_commits, repository, old, new, picks))


def _make_history(repository: Path, bad: str, picks: Sequence[str]) -> Ladder:
    return add_picks(make_history_ladder(repository, bad), picks)


def _make_commits(repository: Path, old: str, new: str, picks: Sequence[str]) -> Ladder:
    return add_picks(make_commit_ladder(repository, old, new), picks)


def _choose_several(options: BisectOptions, settings: Settings) -> LadderChoice:
    if options.install:
        raise InputError("--install installs one repository, and there are several.", "install them with --prepare")
    folders = _open_repositories(options.repo, settings)
    pins = _parse_pins(options.pin, folders)
    picks = _parse_picks(options.cherry_pick, folders)
    repositories = Repositories(folders=folders, pins=pins, picks=picks)
    described = {
        "what": "-".join(folders),
        "kind": "commits",
        "repository": ",".join(f"{name}={folder}" for name, folder in folders.items()),
        "pins": ",".join(map(str, pins)),
        "picks": ",".join(f"{name}={sha}" for name, shas in picks.items() for sha in shas),
    }
    bad = complete_ends(folders, pins, _parse_ends(options.bad, "--bad", folders), "--bad")
    if not options.good:
        described |= {"old": "", "new": _describe_end(bad, folders)}
        make = partial(make_merged_history_ladder, repositories, bad)
        return LadderChoice(described=described, find="regression", make=make)
    good = complete_ends(folders, pins, _parse_ends(options.good, "--good", folders), "--good")
    moving = [name for name in folders if good[name] != bad[name]]
    find: Find = "regression"
    if moving and all(is_ancestor(folders[name], bad[name], good[name]) for name in moving):
        find = "fix"
    old, new = by_age(good, bad, find)
    described |= {"old": _describe_end(old, folders), "new": _describe_end(new, folders)}
    return LadderChoice(described=described, find=find, make=partial(make_merged_ladder, repositories, old, new))


def _describe_end(end: Mapping[str, str], folders: Mapping[str, Path]) -> str:
    return ",".join(f"{name}={end[name]}" for name in folders)


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
    named = split_named(option, values, "NAME=REV", f"{next(iter(folders))}=main")
    names = [name for name, _ in named]
    _refuse_unknown(option, names, folders)
    _refuse_twice(option, names)
    return dict(named)


def _parse_picks(values: Sequence[str], folders: Mapping[str, Path]) -> dict[str, list[str]]:
    named = split_named("--cherry-pick", values, "NAME=REV", f"{next(iter(folders))}=1a2b3c4")
    _refuse_unknown("--cherry-pick", [name for name, _ in named], folders)
    return {
        name: find_picks(folder, [revision for other, revision in named if other == name])
        for name, folder in folders.items()
    }


def _refuse_unknown(option: str, names: Sequence[str], folders: Mapping[str, Path]) -> None:
    unknown = [name for name in names if name not in folders]
    if unknown:
        raise InputError(f"{option}: {unknown[0]!r} is not a --repo: expected one of {', '.join(folders)}.")


def _refuse_twice(option: str, names: Sequence[str]) -> None:
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise InputError(f"{option}: {twice[0]!r} is named {names.count(twice[0])} times.")
