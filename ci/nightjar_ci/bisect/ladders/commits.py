"""The ladder of commits between two commits of a repository, along first parents.

In: a repository and its two ends. Out: a ladder. If the culprit is a merge, a second ladder holds the commits of the
merged branch, from its start to its tip. If that tip passes although the merge fails, the two sides of the merge do not
work together.
"""

from __future__ import annotations

from pathlib import Path

from nightjar_ci.bisect.ladders.diverged import make_diverged_ladder
from nightjar_ci.bisect.ladders.history import (
    find_commit,
    find_merge_base,
    is_ancestor,
    read_between,
    read_commit,
    read_last,
    read_parents,
)
from nightjar_ci.bisect.ladders.rung import Ladder
from nightjar_ci.bisect.ladders.same_builds import merge_same_builds
from nightjar_ci.errors import InputError

MOST_HISTORY = 4096  # commits to search for a good end


def make_commit_ladder(repository: Path, old: str, new: str) -> Ladder:
    """The commits from one commit to another, along first parents; the old end is the first rung."""
    first, last = find_commit(repository, old), find_commit(repository, new)
    if first == last:
        raise InputError(f"{old!r} and {new!r} are the same commit.", "there is nothing to bisect")
    if not is_ancestor(repository, first, last):
        return make_diverged_ladder(repository, first, last)
    rungs = [read_commit(repository, first), *read_between(repository, first, last)]
    notes = (
        [] if first in read_parents(repository, rungs[1].source) else [f"{old} is on a branch that was merged later."]
    )
    kept, same = merge_same_builds(rungs)
    if len(kept) < 2:
        raise InputError(f"{old!r} and {new!r} hold the same files.", "there is nothing to bisect")
    return Ladder(rungs=kept, notes=(*notes, *same), repository=str(repository))


def make_history_ladder(repository: Path, new: str) -> Ladder:
    """The last commits up to one, along first parents, 4,096 at most, to search for an old end."""
    last = find_commit(repository, new)
    rungs = read_last(repository, last, MOST_HISTORY)
    if len(rungs) < 2:
        raise InputError(f"{new!r} has no commit before it.", "there is nothing to bisect")
    return Ladder(rungs=tuple(rungs), repository=str(repository))


def make_branch_ladder(repository: Path, merge: str) -> Ladder | None:
    """The commits that a merge brought in, from the start of their branch; None if it does not merge one branch."""
    parents = read_parents(repository, merge)
    if len(parents) != 2:
        return None
    began = find_merge_base(repository, *parents)
    rungs = [read_commit(repository, began), *read_between(repository, parents[0], parents[1])]
    kept, same = merge_same_builds(rungs)
    if len(kept) > 2:
        notes = (f"the branch that {merge[:12]} merged", *same)
        return Ladder(rungs=kept, notes=notes, repository=str(repository))
    return None
