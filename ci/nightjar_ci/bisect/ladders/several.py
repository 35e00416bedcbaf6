"""The ladder of commits of one or several repositories: each rung moves one of them by one commit.

In: repositories, the commit of each at both ends, and pins: paths that name the commit of another repository that one
is built with. A submodule names the one that is recorded, a file every full SHA-1 in it, such as `XLA_COMMIT = "..."`
in JAX's `third_party/xla/revision.bzl`. Out: a ladder. The commits that a pin moves over come right
before the commit that moves the pin, so that commits built together are tested together. All others are ordered by
commit time. If a pin goes back to an older commit for a while, the ladder does not follow it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from graphlib import CycleError, TopologicalSorter
from itertools import accumulate
from pathlib import Path

from nightjar_ci.bisect.ladders.commits import (
    SUBMODULE,
    find_commit,
    find_last_before,
    git,
    make_branch_ladder,
    make_commit_ladder,
    read_commit,
    read_last,
)
from nightjar_ci.bisect.ladders.rung import WITHOUT, Ladder, Location, Rung
from nightjar_ci.bisect.ladders.timeline import order_moves
from nightjar_ci.errors import InputError

MOST_HISTORY = 4096  # commits to search for a good end
_SHA = re.compile(r"(?<![0-9a-f])[0-9a-f]{40}(?![0-9a-f])")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """A path in the repository `holder` that names a commit of another one."""

    holder: str
    path: str

    def __str__(self) -> str:
        return f"{self.holder}:{self.path}"


def read_pin(repository: Path, commit: str, path: str) -> tuple[tuple[str, ...], bool]:
    """The commits that a path names at a commit, none if there is no such path; and whether it is a submodule."""
    entry = git(repository, "ls-tree", commit, "--", path).partition("\t")[0].split()
    if not entry:
        return (), False
    mode, _, digest = entry
    if mode == SUBMODULE:
        return (digest,), True
    return _find_shas(repository, digest), False


@cache
def _find_shas(repository: Path, blob: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_SHA.findall(git(repository, "cat-file", "blob", blob))))


def find_pinned(repositories: Mapping[str, Path], pin: Pin, commits: Iterable[str]) -> dict[str, str]:
    named: dict[str, str] = {}
    for name, repository in repositories.items():
        for commit in commits:
            if name != pin.holder and name not in named and _has(repository, commit):
                named[name] = commit
    return named


def complete_ends(
    repositories: Mapping[str, Path], pins: Sequence[Pin], named: Mapping[str, str], option: str
) -> dict[str, str]:
    """The commit of each repository at one end: the named ones and the ones that they pin."""
    ends = {name: find_commit(repositories[name], revision) for name, revision in named.items()}
    waiting, silent = list(pins), []
    while ready := [pin for pin in waiting if pin.holder in ends]:
        waiting = [pin for pin in waiting if pin not in ready]
        for pin in ready:
            commits, _ = read_pin(repositories[pin.holder], ends[pin.holder], pin.path)
            found_in = find_pinned(repositories, pin, commits)
            if not found_in:
                silent.append(_refuse_silent(pin, f"at {ends[pin.holder][:12]}"))
            ends = {**found_in, **ends}
    missing = [name for name in repositories if name not in ends]
    if missing and silent:
        raise silent[0]
    if missing:
        hint = f"{option} {missing[0]}=REV, or --pin HOLDER:PATH where a file or submodule of another one names it"
        raise InputError(f"{option}: no commit of {', '.join(missing)} is named or pinned.", hint)
    return ends


def _refuse_silent(pin: Pin, place: str) -> InputError:
    problem = f"--pin {pin}: {place}, there is no such file or submodule, or it names no commit of another repository."
    return InputError(problem, "name the path from the top folder of the repository, or fetch the other one")


@cache
def _has(repository: Path, commit: str) -> bool:
    try:
        find_commit(repository, commit)
    except InputError:
        return False
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class _PinHistory:
    """The value of a pin at each rung of its holder's line: the commits of other repositories, by name."""

    pin: Pin
    named: Sequence[Mapping[str, str]]
    is_submodule: bool


def make_merged_ladder(
    folders: Mapping[str, Path], pins: Sequence[Pin], old: Mapping[str, str], new: Mapping[str, str]
) -> Ladder:
    """The states from the commits of one end to the other's.

    Args:
        folders: of repositories that are built together, by name; a lone one has an empty name.
    """
    if list(folders) == [""]:
        return make_commit_ladder(folders[""], old[""], new[""])
    lines = {name: _make_line(folder, old[name], new[name]) for name, folder in folders.items()}
    histories = [_read_history(folders, pin, lines[pin.holder]) for pin in pins]
    order = _put_holders_first(folders, histories)
    times = _find_times(lines, histories, order)
    state = {name: line.rungs[0] for name, line in lines.items()}
    rungs = [_join(state)]
    for name, index in order_moves(times):
        state[name] = lines[name].rungs[index + 1]
        rungs.append(_join(state, name))
    if len(rungs) < 2:
        raise InputError("each repository has the same commit at both ends.", "there is nothing to bisect")
    notes = tuple(f"{name}: {note}" for name, line in lines.items() for note in line.notes)
    return Ladder(rungs=tuple(rungs), notes=notes, repositories=_locate(folders, histories, order))


def make_history_ladder(folders: Mapping[str, Path], pins: Sequence[Pin], new: Mapping[str, str]) -> Ladder:
    """The states up to one end: the old end is to be found.

    It begins as soon as the history of each repository is known: at 4,096 commits before the end, or fewer.
    """
    oldest = {name: read_last(folder, new[name], MOST_HISTORY)[0] for name, folder in folders.items()}
    if list(folders) == [""]:
        return make_merged_ladder(folders, pins, {"": oldest[""].source}, new)
    since = max(_read_time(rung) for rung in oldest.values())
    old = {name: find_last_before(folders[name], new[name], since) or rung.source for name, rung in oldest.items()}
    return make_merged_ladder(folders, pins, old, new)


def make_inner_branch_ladder(ladder: Ladder, before: Rung, rung: Rung) -> Ladder | None:
    """The commits that a merge in a repository brought in; of several, the others do not move."""
    if ladder.repository is not None:
        return make_branch_ladder(Path(ladder.repository), rung.source, before.picks.get("", ()))
    moved = [name for name in rung.commits if rung.commits[name] != before.commits[name]]
    if len(moved) != 1:
        return None
    name = moved[0]
    folder = Path(ladder.repositories[name].repository)
    branch = make_branch_ladder(folder, rung.commits[name], before.picks.get(name, ()))
    if branch is None:
        return None
    others = {
        other: Rung(kind="commit", name=other, source=sha, picks={"": rung.picks.get(other, ())})
        for other, sha in rung.commits.items()
    }
    rungs = tuple(_join({**others, name: commit}, name) for commit in branch.rungs)
    return ladder.model_copy(update={"rungs": rungs, "notes": branch.notes})


def _make_line(folder: Path, old: str, new: str) -> Ladder:
    if old == new:
        return Ladder(rungs=(read_commit(folder, old),), repository=str(folder))
    return make_commit_ladder(folder, old, new)


def _join(state: Mapping[str, Rung], moved: str | None = None) -> Rung:
    """The rung of one state, named by the repository that moved; the first one by all of them."""
    called = ", ".join(f"{name} {rung.name}" for name, rung in state.items())
    when = note = None
    if moved is not None:
        rung = state[moved]
        called, when, note = f"{moved} {rung.name}", rung.when, rung.note
        if rung.undone is not None:
            note = f"{WITHOUT}{moved} {rung.undone}"
    return Rung(
        kind="commit",
        name=called,
        source=",".join(f"{name}={rung.source}" for name, rung in state.items()),
        when=when,
        note=note,
        commits={name: rung.source for name, rung in state.items()},
        picks={name: rung.picks[""] for name, rung in state.items() if rung.picks.get("")},
    )


def _read_history(folders: Mapping[str, Path], pin: Pin, line: Ladder) -> _PinHistory:
    values = [read_pin(folders[pin.holder], rung.source, pin.path) for rung in line.rungs]
    named = [find_pinned(folders, pin, commits) for commits, _ in values]
    if not any(named):
        raise _refuse_silent(pin, "between the ends")
    return _PinHistory(pin=pin, named=named, is_submodule=values[-1][1])


def _put_holders_first(folders: Mapping[str, Path], histories: Sequence[_PinHistory]) -> list[str]:
    sorter: TopologicalSorter[str] = TopologicalSorter(dict.fromkeys(folders, ()))
    for history in histories:
        for name in {name for named in history.named for name in named}:
            sorter.add(name, history.pin.holder)
    try:
        return list(sorter.static_order())
    except CycleError as error:
        circle = " -> ".join(error.args[1])
        raise InputError(f"--pin: the pins go in a circle: {circle}.", "leave one of them out") from None


def _find_times(
    lines: Mapping[str, Ladder], histories: Sequence[_PinHistory], order: Sequence[str]
) -> dict[str, list[float]]:
    """When each line moves; pinned lines come first, so that at equal times they move before their holders."""
    times: dict[str, list[float]] = {}
    for name in order:
        moments = list(accumulate(map(_read_time, lines[name].rungs[1:]), max))
        numbers = _number_commits(lines[name])
        for history in histories:
            holder_moments = [-math.inf, *times.get(history.pin.holder, ())]
            moved = 0
            for moment, named in zip(holder_moments, history.named, strict=False):
                number = numbers.get(named.get(name, ""), 0)
                for index in range(moved, number):
                    moments[index] = moment
                moved = max(moved, number)
            if 0 < moved < len(moments):  # after the holder of the one before it
                moments[moved] = max(moments[moved], math.nextafter(moments[moved - 1], math.inf))
        times[name] = moments
    return {name: times[name] for name in reversed(order)}


def _number_commits(line: Ladder) -> dict[str, int]:
    """The index on a line of each commit between its ends; a commit that is not a rung has the previous rung's."""
    assert line.repository is not None, "a line is of a repository"
    rungs = {rung.source: index for index, rung in enumerate(line.rungs)}
    between = f"{line.rungs[0].source}..{line.rungs[-1].source}"
    numbers, number = {}, 0
    for sha in git(Path(line.repository), "rev-list", "--first-parent", "--reverse", between).split():
        number = rungs.get(sha, number)
        numbers[sha] = number
    return numbers


def _read_time(rung: Rung) -> float:
    """The time of a commit; undone commits come before all others."""
    if rung.undone is not None or rung.when is None:
        return -math.inf
    return datetime.fromisoformat(rung.when).timestamp()


def _locate(folders: Mapping[str, Path], histories: Sequence[_PinHistory], order: Sequence[str]) -> dict[str, Location]:
    """Checkout path of each: a submodule at its holder's path, others in a folder of their name."""
    locations: dict[str, Location] = {}
    for name in order:
        path = name
        for history in histories:
            if history.is_submodule and any(name in named for named in history.named):
                path = f"{locations[history.pin.holder].path}/{history.pin.path}"
        locations[name] = Location(repository=str(folders[name]), path=path)
    return locations
