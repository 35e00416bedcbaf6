"""The chosen ladder, and the checks of its ends that all kinds of ladders share.

In: the ends that options name. Out: a `LadderChoice`, and the ends by age.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from nightjar_ci.bisect.ladders.rung import Ladder
from nightjar_ci.bisect.state import Find
from nightjar_ci.errors import InputError

End = TypeVar("End")


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderChoice:
    """A ladder that can be made, and its description."""

    described: Mapping[str, str]
    find: Find
    make: partial[Ladder]


def by_age(good: End, bad: End, find: Find) -> tuple[End, End]:
    """The old end and the new one: the bad end is the old one in a search for a fix."""
    if find == "fix":
        return bad, good
    return good, bad


def at_most_one(ends: Sequence[str], option: str) -> str | None:
    """The end of a ladder that has one on each side; None if it is not named."""
    if not ends:
        return None
    return one_end(ends, option)


def one_end(ends: Sequence[str], option: str) -> str:
    """The end of a ladder that has one on each side."""
    if len(ends) != 1:
        raise InputError(f"{option}: expected once for this ladder, found {len(ends)} times.")
    return ends[0]
