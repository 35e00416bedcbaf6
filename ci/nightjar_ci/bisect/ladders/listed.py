"""The ladder that a text file lists: one rung per line, the old end first; `#` starts a comment.

In: a file written by a person or a program. Out: a ladder. A command of the user prepares each rung, or the test takes
the rung's name as an argument (`{rung}`).
"""

from __future__ import annotations

from pathlib import Path

from nightjar_ci.bisect.ladders.rung import Ladder, Rung
from nightjar_ci.errors import InputError


def make_listed_ladder(path: Path, old: str | None, new: str | None) -> Ladder:
    """The rungs of a list between two of them, both included.

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
