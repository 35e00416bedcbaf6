"""The data model of a ladder: rungs from the old end to the new one, each with everything needed to make it again.

Rungs are plain data and are kept in `bisection.json`. An interrupted bisection therefore asks no index, registry or
repository again when it resumes, and it has the same ladder the next day. The simplest ladder is a text file of names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field

from nightjar_ci.environments.uv import FOLLOWS_JAX
from nightjar_ci.errors import InputError
from nightjar_ci.formats.documents import StrictModel

OnLine = Callable[[str], None]
RungKind = Literal["packages", "image", "commit", "listed"]
_MOST_NAMED = 5
PYTHON = "python"  # among the pins: the interpreter, which comes from no index
SIDE_BY_SIDE = 4  # requests at a time: they wait for a server more than they compute
WITHOUT = "without "  # begins the note of a commit that was reached by undoing another one


class Rung(StrictModel):
    """One thing to test.

    Attributes:
        name: shown to users; unique on its ladder.
        source: image reference, commit, or entry of a list; empty for packages. Of several repositories, the commit
            of each, as `jax=SHA,xla=SHA`.
        tree: of a commit, git's digest of all files that it records.
        commits: of several repositories, the commit of each by name.
        picks: commits that are picked onto a repository's commit, by its name; the name of a lone repository is empty.
        when: time of release or commit, ISO 8601, if known.
        pins: version of every package in it, if known; `python` is the interpreter, if it moves.
        note: a remark, such as `yanked`.
        unknown: names of the states just before it that cannot be installed, so that no test tells them from it.
    """

    kind: RungKind
    name: str
    source: str = ""
    tree: str = ""
    when: str | None = None
    pins: dict[str, str] = Field(default_factory=dict)
    note: str | None = None
    unknown: tuple[str, ...] = ()
    commits: dict[str, str] = Field(default_factory=dict)
    picks: dict[str, tuple[str, ...]] = Field(default_factory=dict)

    @property
    def undone(self) -> str | None:
        """The commit that was undone to get here, if the ends are on two branches."""
        if self.note is None or not self.note.startswith(WITHOUT):
            return None
        return self.note.removeprefix(WITHOUT)

    @property
    def lock(self) -> tuple[str, ...]:
        """Its packages as requirements.

        >>> Rung(kind="packages", name="a 1", pins={"a": "1", "b": "@ https://host/b.whl", "python": "3.12"}).lock
        ('a==1', 'b @ https://host/b.whl')
        """
        return tuple(requirement(name, version) for name, version in sorted(self.pins.items()) if name != PYTHON)

    @property
    def python(self) -> str | None:
        return self.pins.get(PYTHON)

    @property
    def runtime(self) -> dict[str, str]:
        """Version of each compiled package of JAX: jaxlib and its plugins."""
        return {name: version for name, version in self.pins.items() if FOLLOWS_JAX.fullmatch(name)}

    @property
    def argument(self) -> str:
        """The value of `{rung}` in commands, and of `$NIGHTJAR_RUNG`."""
        return self.source or self.name

    def fill(self, command: Sequence[str], folder: Path) -> list[str]:
        """A command with `{rung}` and `{folder}` filled; other braces are left as they are."""
        return [part.replace("{rung}", self.argument).replace("{folder}", str(folder)) for part in command]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkout:
    """A commit of a repository, to be checked out.

    Attributes:
        name: of the repository; empty if it is the only one.
        path: its checkout, below the common folder; `.` is this folder.
        nested: paths of other repositories inside of it, below its own.
    """

    name: str
    repository: Path
    path: str
    sha: str
    picks: tuple[str, ...] = ()
    nested: tuple[str, ...] = ()


class Location(StrictModel):
    """One of several repositories: its folder, and the path of its checkout below the common folder."""

    repository: str
    path: str


class Ladder(StrictModel):
    """Rungs, the old end first.

    Attributes:
        notes: omitted rungs and the reasons, one line each.
        repositories: of commits of several repositories, each by name, the outer ones before those inside of them.
        package: package that each commit is installed as, with the rung's pins; None if tests run in the work tree.
        folders: packages installed from a folder of this machine into every rung: name to folder and editable.
    """

    rungs: tuple[Rung, ...]
    notes: tuple[str, ...] = ()
    folders: dict[str, tuple[Path, bool]] = Field(default_factory=dict)
    repository: str | None = None
    repositories: dict[str, Location] = Field(default_factory=dict)
    package: str | None = None

    def checkouts(self, rung: Rung) -> list[Checkout]:
        """The checkouts for a rung of commits, outer ones before inner ones."""
        if self.repository is not None:
            picks = rung.picks.get("", ())
            return [Checkout(name="", repository=Path(self.repository), path=".", sha=rung.source, picks=picks)]
        paths = [location.path for location in self.repositories.values()]
        return [
            Checkout(
                name=name,
                repository=Path(location.repository),
                path=location.path,
                sha=rung.commits[name],
                picks=rung.picks.get(name, ()),
                nested=tuple(
                    path.removeprefix(f"{location.path}/") for path in paths if path.startswith(f"{location.path}/")
                ),
            )
            for name, location in self.repositories.items()
        ]


def merge_same_builds(rungs: Sequence[Rung]) -> tuple[tuple[Rung, ...], tuple[str, ...]]:
    """The rungs that differ from the one before, and a line for each merged one: no test can tell the two apart.

    >>> pinned = [Rung(kind="packages", name=name, pins={"a": a}) for name, a in zip("xyz", "112")]
    >>> kept, notes = merge_same_builds(pinned)
    >>> [rung.name for rung in kept], notes
    (['x', 'z'], ('y is the same build as x.',))
    """
    kept: list[Rung] = []
    same: dict[str, list[str]] = {}
    for rung in rungs:
        if kept and _is_same_build(kept[-1], rung):
            same.setdefault(kept[-1].name, []).append(rung.name)
        else:
            kept.append(rung)
    return tuple(kept), tuple(_describe(first, others) for first, others in same.items())


def _is_same_build(before: Rung, rung: Rung) -> bool:
    if before.kind != rung.kind:
        return False
    if rung.kind == "packages":
        return bool(rung.pins) and rung.pins == before.pins
    if rung.kind == "image":
        return rung.source == before.source
    return bool(rung.tree) and rung.tree == before.tree


def _describe(first: str, others: Sequence[str]) -> str:
    if len(others) == 1:
        return f"{others[0]} is the same build as {first}."
    return f"{list_names(others)} are the same build as {first}."


def list_names(names: Sequence[str]) -> str:
    """The first five of some names, and the number of the others."""
    listed = ", ".join(names[:_MOST_NAMED])
    if len(names) > _MOST_NAMED:
        listed += f" and {len(names) - _MOST_NAMED} more"
    return listed


def requirement(name: str, version: str) -> str:
    """A pin as a requirement; a version that starts with `@` is an address."""
    if version.startswith("@"):
        return f"{name} {version}"
    return f"{name}=={version}"


def file_name(index: int, name: str) -> str:
    """A rung's name as a file name: the index keeps it unique, whatever its characters and length.

    >>> file_name(3, "jax 0.4.33"), file_name(4, "../../etc; rm -rf")
    ('r0003-jax-0.4.33', 'r0004-etc-rm-rf')
    """
    safe = re.sub(r"[^A-Za-z0-9._]+|[.]{2,}", "-", name).strip("-._")[:48].rstrip("-._")
    if safe:
        return f"r{index:04d}-{safe}"
    return f"r{index:04d}"


def make_listed_ladder(path: Path, old: str | None, new: str | None) -> Ladder:
    """The rungs of a list between two of them, both included; one rung per line, and `#` starts a comment.

    Args:
        old, new: names of the ends; the first and the last if None.
    """
    names = read_list(path)
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"{path}: {twice!r} is listed twice, expected each rung once.")
    for end in (old, new):
        if end is not None and end not in names:
            raise InputError(f"{path}: there is no rung {end!r}.", "an end is one line of the list")
    first, stop = 0, len(names)
    if old is not None:
        first = names.index(old)
    if new is not None:
        stop = names.index(new) + 1
    chosen = names[first:stop]
    if len(chosen) < 2:
        raise InputError(f"{path}: {len(chosen)} rungs between the ends, expected two or more.")
    return Ladder(rungs=tuple(Rung(kind="listed", name=name, source=name) for name in chosen))


def read_list(path: Path) -> list[str]:
    try:
        lines = [line.partition("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {error}.") from None
    return [line for line in lines if line]
