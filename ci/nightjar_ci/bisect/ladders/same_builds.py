"""Rungs that are the same build as the one before: no test can tell them apart, so they become one rung.

In: the rungs of a ladder. Out: the first rung of each run of equal builds, and a note for each merged rung. Two rungs
are the same build if both pin all their packages and pin the same, or if both commits record the same files.
"""

from __future__ import annotations

from collections.abc import Sequence

from nightjar_ci.bisect.ladders.rung import Rung

MOST_NAMED = 5


def merge_same_builds(rungs: Sequence[Rung]) -> tuple[tuple[Rung, ...], tuple[str, ...]]:
    """The rungs that differ from the one before, and the merged ones, one line each.

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
    return bool(rung.tree) and rung.tree == before.tree


def _describe(first: str, others: Sequence[str]) -> str:
    names = ", ".join(others[:MOST_NAMED])
    if len(others) > MOST_NAMED:
        names += f" and {len(others) - MOST_NAMED} more"
    if len(others) == 1:
        return f"{names} is the same build as {first}."
    return f"{names} are the same build as {first}."
