"""The ladder between two commits that have diverged, and commits picked onto rungs.

In: a repository and two ends that have diverged, such as a branch before and after a rebase, or two release branches.
Out: the ladder from the old end back to the merge base, and on to the new end. Each rung differs from the one before by
one commit, undone on the way back and done on the way on. A change on the way back is a fix that the new branch does
not have. A patch that both branches carry is on every rung: `git cherry-pick` applies it if the history lacks it. So it
is neither mistaken for the change nor missing when a test needs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from nightjar_ci.bisect.ladders.history import find_commit, find_merge_base, git, read_between, read_commit
from nightjar_ci.bisect.ladders.rung import WITHOUT, Ladder, Rung

_MOST_NAMED = 5


def make_diverged_ladder(repository: Path, first: str, last: str) -> Ladder:
    """The ladder between the ends of two branches."""
    base = find_merge_base(repository, first, last)
    own, line = read_between(repository, base, first), read_between(repository, base, last)
    carried = _find_carried(repository, own, line, base)
    rungs = [own[-1], *_go_back(read_commit(repository, base), own, carried)]
    skipped = {index for index in carried.values() if index < len(line) - 1 and line[index].note != "merge"}
    for index, rung in enumerate(line):
        if index not in skipped:
            picks = [commit.source for commit in own if carried.get(commit.source, -1) > index]
            rungs.append(_pick(rung, picks))
    notes = [f"The ends are on two branches: the ladder goes back to where they part, {base[:12]}, and on from there."]
    if carried:
        names = [commit.name for commit in own if commit.source in carried]
        named = ", ".join(names[:_MOST_NAMED])
        if len(names) > _MOST_NAMED:
            named += f" and {len(names) - _MOST_NAMED} more"
        notes.append(f"On both branches, so picked onto the rungs between: {named}.")
    return Ladder(rungs=tuple(rungs), notes=tuple(notes), repository=str(repository))


def find_picks(repository: Path, revisions: Sequence[str]) -> list[str]:
    """The commits that revisions and ranges (`A..B`) name, in the order in which they are picked."""
    picks: list[str] = []
    for revision in revisions:
        start, dots, end = revision.partition("..")
        if not dots:
            picks.append(find_commit(repository, revision))
            continue
        ends = f"{find_commit(repository, start)}..{find_commit(repository, end)}"
        picks += git(repository, "rev-list", "--reverse", "--no-merges", ends).split()
    return list(dict.fromkeys(picks))


def add_picks(ladder: Ladder, picks: Sequence[str]) -> Ladder:
    """A ladder of one repository with commits picked onto each rung whose history lacks them."""
    if not picks or ladder.repository is None:
        return ladder
    repository = Path(ladder.repository)
    ends = (ladder.rungs[0].source, ladder.rungs[-1].source)
    holders = {pick: _find_holders(repository, pick, ends) for pick in picks}
    rungs = [
        _pick(rung, [*rung.picks.get("", ()), *(pick for pick in picks if rung.source not in holders[pick])])
        for rung in ladder.rungs
    ]
    return ladder.model_copy(update={"rungs": tuple(rungs)})


def _find_holders(repository: Path, pick: str, ends: Sequence[str]) -> set[str]:
    """The commit and its descendants in the history of the ends."""
    return {pick, *git(repository, "rev-list", "--ancestry-path", *ends, f"^{pick}").split()}


def _pick(rung: Rung, picks: Sequence[str]) -> Rung:
    """A rung with commits picked onto it; git's digest of the commit's files no longer matches the tested files."""
    if not picks:
        return rung
    chosen = tuple(dict.fromkeys(picks))
    return rung.model_copy(update={"picks": {"": chosen}, "tree": f"{rung.tree}+{'+'.join(chosen)}"})


def _find_carried(repository: Path, own: Sequence[Rung], line: Sequence[Rung], base: str) -> dict[str, int]:
    """The commits of one branch whose patch is on the other one, each with its index there."""
    if not line:
        return {}
    listed = git(repository, "cherry", line[-1].source, own[-1].source, base).splitlines()
    on_both = {row[2:] for row in listed if row.startswith("- ")} & {commit.source for commit in own}
    carried = {}
    for sha in on_both:
        low, high = 0, len(line) - 1
        while low < high:
            middle = (low + high) // 2
            if git(repository, "cherry", line[middle].source, sha, f"{sha}^").startswith("- "):
                high = middle
            else:
                low = middle + 1
        carried[sha] = low
    return carried


def _go_back(base: Rung, own: Sequence[Rung], carried: dict[str, int]) -> list[Rung]:
    """One rung for each commit that is undone, the latest first; carried commits stay."""
    rungs: list[Rung] = []
    for index in range(len(own) - 1, -1, -1):
        if own[index].source in carried:
            continue
        below = [base, *own][index]
        picks = [commit.source for commit in own[index + 1 :] if commit.source in carried]
        rungs.append(_pick(below, picks).model_copy(update={"note": f"{WITHOUT}{own[index].name}"}))
    return rungs
