"""The ladder of commits of several repositories: each rung is one commit of each, and moves one of them by one commit.

In: repositories, the commit of each at both ends, and pins. Out: a ladder. The commits that a pin moves over come right
before the commit that moves the pin, so that commits built together are tested together. All others are ordered by
commit time. If a pin goes back to an older commit for a while, the ladder does not follow it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from graphlib import CycleError, TopologicalSorter
from itertools import accumulate
from pathlib import Path

from nightjar_ci.bisect.ladders.commits import MOST_HISTORY, make_branch_ladder, make_commit_ladder
from nightjar_ci.bisect.ladders.diverged import add_picks
from nightjar_ci.bisect.ladders.history import find_last_before, git, read_commit, read_last
from nightjar_ci.bisect.ladders.pins import Pin, Pinned, find_pinned, read_pin
from nightjar_ci.bisect.ladders.rung import WITHOUT, Ladder, Location, Rung
from nightjar_ci.bisect.ladders.timeline import order_moves
from nightjar_ci.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Repositories:
    """Repositories that are built together.

    Attributes:
        folders: by name.
        pins: the paths in which one names the commit of another.
        picks: commits that are picked onto those whose history lacks them, by name.
    """

    folders: Mapping[str, Path]
    pins: Sequence[Pin] = ()
    picks: Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _PinHistory:
    """The value of a pin at each rung of its holder's line: the commits of other repositories, by name."""

    pin: Pin
    named: Sequence[Mapping[str, str]]
    is_submodule: bool


def make_merged_ladder(repositories: Repositories, old: Mapping[str, str], new: Mapping[str, str]) -> Ladder:
    """The states from the commits of one end to the other's.

    Args:
        repositories: their folders, pins and picks.
        old, new: the full name of each one's commit.
    """
    lines = {name: _make_line(repositories, name, old[name], new[name]) for name in repositories.folders}
    histories = [_read_history(repositories, pin, lines[pin.holder]) for pin in repositories.pins]
    order = _put_holders_first(repositories, histories)
    times = _find_times(lines, histories, order)
    state = {name: line.rungs[0] for name, line in lines.items()}
    rungs = [_join(state)]
    for name, index in order_moves(times):
        state[name] = lines[name].rungs[index + 1]
        rungs.append(_join(state, name))
    if len(rungs) < 2:
        raise InputError("each repository has the same commit at both ends.", "there is nothing to bisect")
    notes = tuple(f"{name}: {note}" for name, line in lines.items() for note in line.notes)
    return Ladder(rungs=tuple(rungs), notes=notes, repositories=_locate(repositories, histories, order))


def make_merged_history_ladder(repositories: Repositories, new: Mapping[str, str]) -> Ladder:
    """The states up to one end: the old end is to be found.

    It begins as soon as the history of each repository is known: at 4,096 commits before the end, or fewer.
    """
    oldest = {name: read_last(folder, new[name], MOST_HISTORY)[0] for name, folder in repositories.folders.items()}
    since = max(_read_time(rung) for rung in oldest.values())
    old = {
        name: find_last_before(repositories.folders[name], new[name], since) or rung.source
        for name, rung in oldest.items()
    }
    return make_merged_ladder(repositories, old, new)


def make_merged_branch_ladder(ladder: Ladder, before: Rung, rung: Rung) -> Ladder | None:
    """The commits that a merge in one of several repositories brought in; the others do not move."""
    moved = [name for name in rung.commits if rung.commits[name] != before.commits[name]]
    if len(moved) != 1:
        return None
    name = moved[0]
    branch = make_branch_ladder(Path(ladder.repositories[name].repository), rung.commits[name])
    if branch is None:
        return None
    branch = add_picks(branch, before.picks.get(name, ()))
    others = {
        other: Rung(kind="commit", name=other, source=sha, picks={"": rung.picks.get(other, ())})
        for other, sha in rung.commits.items()
    }
    rungs = tuple(_join({**others, name: commit}, name) for commit in branch.rungs)
    return ladder.model_copy(update={"rungs": rungs, "notes": branch.notes})


def _make_line(repositories: Repositories, name: str, old: str, new: str) -> Ladder:
    """The commits of one repository; one rung if it does not move."""
    folder = repositories.folders[name]
    if old == new:
        line = Ladder(rungs=(read_commit(folder, old),), repository=str(folder))
    else:
        line = make_commit_ladder(folder, old, new)
    return add_picks(line, repositories.picks.get(name, ()))


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


def _read_history(repositories: Repositories, pin: Pin, line: Ladder) -> _PinHistory:
    said: Pinned | None = None
    named: list[Mapping[str, str]] = []
    for rung in line.rungs:
        before, said = said, read_pin(repositories.folders[pin.holder], rung.source, pin.path, said)
        if said is None:
            named.append({})
        elif said is before:
            named.append(named[-1])
        else:
            named.append(find_pinned(repositories.folders, pin, said.commits))
    if not any(named):
        problem = f"--pin {pin}: between the ends, it names no commit of another repository."
        raise InputError(problem, "name the path from the top folder of the repository, or fetch the other one")
    return _PinHistory(pin=pin, named=named, is_submodule=said is not None and said.is_submodule)


def _put_holders_first(repositories: Repositories, histories: Sequence[_PinHistory]) -> list[str]:
    """The repositories, each after its holders."""
    sorter: TopologicalSorter[str] = TopologicalSorter(dict.fromkeys(repositories.folders, ()))
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


def _locate(repositories: Repositories, histories: Sequence[_PinHistory], order: Sequence[str]) -> dict[str, Location]:
    """Checkout path of each: a submodule at its holder's path, others in a folder of their name."""
    locations: dict[str, Location] = {}
    for name in order:
        path = name
        for history in histories:
            if history.is_submodule and any(name in named for named in history.named):
                path = f"{locations[history.pin.holder].path}/{history.pin.path}"
        locations[name] = Location(repository=str(repositories.folders[name]), path=path)
    return locations
