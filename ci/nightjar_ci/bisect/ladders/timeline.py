"""The merged timeline of several packages: the states from one set of versions to another. Pure.

In: the versions at both ends, and the releases of each package. Out: the states in order, each with the one package
that moved. Steps are ordered by release date, and the steps of one package by version. If any package lacks dates,
each package's steps are spread evenly in version order instead. A package that is named only by an address, or that
goes back to an older version, moves in one step at the end, because no release date says when it moved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from packaging.version import InvalidVersion, Version

from nightjar_ci.web.package_index import Release


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One package moves.

    Attributes:
        pins: the state after it: version of each package on the ladder.
    """

    package: str
    release: Release
    pins: Mapping[str, str]


def merge_timelines(
    old: Mapping[str, str], new: Mapping[str, str], releases: Mapping[str, Sequence[Release]]
) -> list[Step]:
    """The steps from the old end (not a step) to the new one.

    Args:
        old, new: version of each package; a package that only one of them has is left to the resolver.
    """
    differing = [name for name in old if name in new and old[name] != new[name]]
    between = {name: releases_between(old[name], new[name], releases.get(name, ())) for name in differing}
    steady = [passed for passed in between.values() if not _is_jump(passed)]
    dated = all(release.uploaded is not None for passed in steady for release in passed)
    times: dict[str, list[float]] = {}
    for name, passed in between.items():
        times[name] = []
        for index, release in enumerate(passed):
            if _is_jump(passed):
                times[name].append(float("inf"))
            elif dated and release.uploaded:
                times[name].append(release.uploaded.timestamp())
            else:
                times[name].append((index + 1) / len(passed))
    state = dict(old)
    steps = []
    for name, index in order_moves(times):
        release = between[name][index]
        state[name] = release.version
        steps.append(Step(package=name, release=release, pins=dict(state)))
    return steps


def order_moves(times: Mapping[str, Sequence[float]]) -> list[tuple[str, int]]:
    """The moves of several lines as one sequence, each move by its line and its index on it.

    Args:
        times: when each line moves. A move that came late does not come before the one it follows; of moves at the
            same time, the moves of the line named first come first.

    >>> order_moves({"a": [1.0, 4.0, 3.0], "b": [2.0, 4.0]})
    [('a', 0), ('b', 0), ('a', 1), ('a', 2), ('b', 1)]
    """
    moves = []
    for line, (name, moments) in enumerate(times.items()):
        moves += [(latest, line, name, index) for index, latest in enumerate(accumulate(moments, max))]
    return [(name, index) for _, _, name, index in sorted(moves)]


def releases_between(old: str, new: str, releases: Sequence[Release]) -> list[Release]:
    """The releases after the old version up to the new one, in version order; pre-releases only between such.

    >>> known = [Release(version=v) for v in ("1.0", "1.10", "1.9", "1.11rc1", "1.11")]
    >>> [one.version for one in releases_between("1.0", "1.11", known)]
    ['1.9', '1.10', '1.11']
    """
    end = next((release for release in releases if release.version == new), Release(version=new))
    try:
        low, high = Version(old), Version(new)
    except InvalidVersion:
        return [end]
    if high < low:
        return [Release(version=new)]
    wanted = low.is_prerelease or high.is_prerelease
    inner = {}
    for release in releases:
        version = _parse(release.version)
        if version is not None and low < version < high and (wanted or not version.is_prerelease):
            inner[version] = release
    return [*(inner[version] for version in sorted(inner)), end]


def as_released(version: str, releases: Sequence[Release]) -> str:
    """A version as its index writes it: `3.4` for `3.4.0`."""
    named = _parse(version)
    return next((release.version for release in releases if named and _parse(release.version) == named), version)


def _is_jump(releases: Sequence[Release]) -> bool:
    return len(releases) == 1 and releases[0].uploaded is None


def _parse(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:
        return None
