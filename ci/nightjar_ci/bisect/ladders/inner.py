"""The ladder inside a culprit: releases between two images, commits between two releases, the branch of a merge.

In: a ladder and the rung that was found on it. Out: a finer ladder between that rung and the one before, None if there
is none, or the reason why it cannot be made. A package leads on to its commits if the caller named its repository: only
pure Python is installed from a commit without extra steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from nightjar_ci.bisect.ladders.commits import find_commit, make_commit_ladder, open_repository
from nightjar_ci.bisect.ladders.packages import Base, make_package_ladder
from nightjar_ci.bisect.ladders.rung import Ladder, OnLine, Rung
from nightjar_ci.bisect.ladders.several import make_inner_branch_ladder
from nightjar_ci.environments.package_source import TAGS
from nightjar_ci.errors import InputError, NightjarError
from nightjar_ci.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Sources of finer ladders.

    Attributes:
        repositories: folder or address of the repository of a package, by its canonical name.
    """

    settings: Settings
    repositories: Mapping[str, str] = field(default_factory=dict)
    python: str | None = None


def make_inner_ladder(ladder: Ladder, index: int, sources: Sources, on_line: OnLine) -> Ladder | str | None:
    """The ladder between a rung and the one before it, or why it cannot be made; None if there is nothing inside."""
    before, rung = ladder.rungs[index - 1], ladder.rungs[index]
    try:
        if rung.kind == "commit":
            return make_inner_branch_ladder(ladder, before, rung)
        if rung.kind == "image":
            return _releases_between(before, rung, sources, on_line)
        if rung.kind == "packages":
            return _commits_between(before, rung, sources, on_line)
    except NightjarError as error:
        return f"{rung.name} is not bisected further: {error.message.splitlines()[0]}"
    return None


def _releases_between(before: Rung, rung: Rung, sources: Sources, on_line: OnLine) -> Ladder | None:
    moving = [name for name in before.pins if name in rung.pins and before.pins[name] != rung.pins[name]]
    if not moving:
        return None
    constant = {name: version for name, version in before.pins.items() if rung.pins.get(name) == version}
    base = Base(pins=constant, python=sources.python, dated=False)
    old, new = ({name: side.pins[name] for name in moving} for side in (before, rung))
    return make_package_ladder(old, new, base, sources.settings.index_url, on_line)


def _commits_between(before: Rung, rung: Rung, sources: Sources, on_line: OnLine) -> Ladder | None:
    """The commits of the package that moved between two environments, each installed in place of its release."""
    moved = [name for name in sorted({*before.pins, *rung.pins}) if before.pins.get(name) != rung.pins.get(name)]
    named = [name for name in moved if name in sources.repositories and name in before.pins and name in rung.pins]
    if len(named) != 1:
        return None
    name = named[0]
    repository = open_repository(sources.repositories[name], sources.settings.state_dir / "repositories")
    on_line(f"reading the commits of {name} from {before.pins[name]} to {rung.pins[name]}")
    old, new = (_find_tag(repository, name, side.pins[name]) for side in (before, rung))
    commits = make_commit_ladder(repository, old, new)
    others = {package: version for package, version in rung.pins.items() if package != name}
    rungs = tuple(commit.model_copy(update={"pins": others}) for commit in commits.rungs)
    notes = commits.notes
    if len(moved) > 1:
        notes += (f"Other packages are those of {rung.name}, unless a commit requires another version.",)
    return commits.model_copy(update={"rungs": rungs, "package": name, "notes": notes})


def _find_tag(repository: Path, name: str, version: str) -> str:
    for tag in TAGS:
        try:
            return find_commit(repository, f"refs/tags/{tag.format(name=name, version=version)}")
        except InputError:
            continue
    tried = ", ".join(tag.format(name=name, version=version) for tag in TAGS)
    raise InputError(f"{repository} has no tag of {name} {version}: {tried}.", "fetch its tags, or add one")
