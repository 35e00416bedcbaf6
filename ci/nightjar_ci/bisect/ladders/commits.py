"""The ladder of commits between two commits of a repository, along first parents.

In: a folder or an address, and two ends. Out: a ladder. If the culprit is a merge, a second ladder holds the commits of
the merged branch, from its start to its tip.

If the ends have diverged, as a branch before and after a rebase, the ladder goes from the old end back to the merge
base, and on to the new end: each rung undoes a commit on the way back and does one on the way on. A change on the way
back is a fix that the new branch lacks. A patch that both branches carry is on every rung: `git cherry-pick` applies it
where the history lacks it, so that it is neither mistaken for the change nor missing when a test needs it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

from nightjar_ci.bisect.ladders.rung import WITHOUT, Ladder, Rung, list_names, merge_same_builds
from nightjar_ci.errors import InputError, NightjarError
from nightjar_ci.tools import run_captured
from nightjar_ci.untrusted.git import git_command, repository_command
from nightjar_ci.web.http import hide_passwords

_FORMAT = "%H%x00%T%x00%h%x00%cI%x00%P%x00%s"
SUBMODULE = "160000"  # mode of an entry of a tree, in git's words a gitlink


def make_commit_ladder(repository: Path, old: str, new: str) -> Ladder:
    """The commits from one commit to another, along first parents; the old end is the first rung."""
    first, last = find_commit(repository, old), find_commit(repository, new)
    if first == last:
        raise InputError(f"{old!r} and {new!r} are the same commit.", "there is nothing to bisect")
    if not is_ancestor(repository, first, last):
        return _make_diverged_ladder(repository, first, last)
    rungs = [read_commit(repository, first), *read_between(repository, first, last)]
    notes = (
        [] if first in read_parents(repository, rungs[1].source) else [f"{old} is on a branch that was merged later."]
    )
    kept, same = merge_same_builds(rungs)
    if len(kept) < 2:
        raise InputError(f"{old!r} and {new!r} hold the same files.", "there is nothing to bisect")
    return Ladder(rungs=kept, notes=(*notes, *same), repository=str(repository))


def make_branch_ladder(repository: Path, merge: str, picks: Sequence[str] = ()) -> Ladder | None:
    """The commits that a merge brought in, from the start of their branch; None if it does not merge one branch.

    Args:
        picks: commits that are picked onto the branch's, unless they are a part of it.
    """
    parents = read_parents(repository, merge)
    if len(parents) != 2:
        return None
    began = find_merge_base(repository, *parents)
    rungs = [read_commit(repository, began), *read_between(repository, parents[0], parents[1])]
    kept, same = merge_same_builds(rungs)
    if len(kept) > 2:
        own = {rung.source for rung in rungs}
        picked = tuple(_pick(rung, [pick for pick in picks if pick not in own]) for rung in kept)
        return Ladder(rungs=picked, notes=(f"the branch that {merge[:12]} merged", *same), repository=str(repository))
    return None


def _make_diverged_ladder(repository: Path, first: str, last: str) -> Ladder:
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
        named = list_names([commit.name for commit in own if commit.source in carried])
        notes.append(f"On both branches, so picked onto the rungs between: {named}.")
    return Ladder(rungs=tuple(rungs), notes=tuple(notes), repository=str(repository))


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


def open_repository(text: str, cache: Path) -> Path:
    """The folder of a repository: a folder as it is, an address as a cached, updated clone."""
    if re.match(r"\w+://|[\w.-]+@[\w.-]+:", text):
        return _clone(text, cache)
    folder = Path(text).absolute()
    try:
        return Path(run_captured(git_command(folder, "rev-parse", "--show-toplevel")).strip())
    except NightjarError:
        hint = "name a folder of one, or its address, as file:///srv/name.git for one without a work tree"
        raise InputError(f"{text}: no git repository with a work tree.", hint) from None


def find_place(repository: str | None) -> Path:
    """The place of the working directory in a repository; its top if it lies outside."""
    folder, root = Path.cwd().resolve(), Path(repository or "/nowhere").resolve()
    return folder.relative_to(root) if folder.is_relative_to(root) else Path()


def is_ancestor(repository: Path, first: str, last: str) -> bool:
    return git(repository, "rev-list", "--count", "--max-count=1", first, f"^{last}").strip() == "0"


def find_commit(repository: Path, revision: str) -> str:
    try:
        return git(repository, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}").strip()
    except NightjarError:
        hint = unless_shallow(repository, "check the spelling, or run `git fetch`")
        raise InputError(f"{revision!r} is not a commit of {repository}.", hint) from None


def unless_shallow(repository: Path, hint: str) -> str:
    if git(repository, "rev-parse", "--is-shallow-repository").strip() == "true":
        return "this clone is shallow: `git fetch --unshallow`"
    return hint


def read_commit(repository: Path, sha: str) -> Rung:
    return _list(repository, "--max-count=1", sha)[0]


def git(folder: Path, *arguments: str) -> str:
    return run_captured(repository_command(folder, *arguments))


def _clone(address: str, cache: Path) -> Path:
    folder = cache / f"{hashlib.sha256(address.encode()).hexdigest()[:16]}.git"
    try:
        if (folder / "HEAD").is_file():
            git(folder, "fetch", "--quiet", "--prune", "--tags", "origin", "+refs/heads/*:refs/heads/*")
            return folder
        folder.parent.mkdir(parents=True, exist_ok=True)
        run_captured(["git", "clone", "--quiet", "--bare", "--filter=blob:none", "--", address, str(folder)])
    except NightjarError as error:
        raise NightjarError(hide_passwords(error.message), "is the repository reached?") from None
    return folder


def read_between(repository: Path, first: str, last: str) -> list[Rung]:
    """The commits after one up to another, along first parents, the oldest first."""
    return _list(repository, f"{first}..{last}")


def read_last(repository: Path, sha: str, most: int) -> list[Rung]:
    return _list(repository, f"--max-count={most}", sha)


def _list(repository: Path, *wanted: str) -> list[Rung]:
    return parse_commits(git(repository, "log", "--first-parent", "--reverse", f"--format={_FORMAT}", *wanted))


def find_last_before(repository: Path, sha: str, moment_s: float) -> str | None:
    """The last commit in another one's history, along first parents, that is not newer than a Unix time."""
    return git(repository, "rev-list", "-1", "--first-parent", f"--before=@{moment_s:.0f}", sha).strip() or None


def find_merge_base(repository: Path, first: str, last: str) -> str:
    """The latest commit that is in the history of both."""
    try:
        return git(repository, "merge-base", first, last).strip()
    except NightjarError:
        hint = unless_shallow(repository, "bisect each by itself")
        raise InputError(f"{first[:12]} and {last[:12]} have no common history.", hint) from None


def list_submodules(repository: Path, sha: str) -> list[str]:
    try:
        text = git(repository, "config", "--blob", f"{sha}:.gitmodules", "--get-regexp", r"^submodule\..*\.path$")
    except NightjarError:
        return []
    return [line.partition(" ")[2] for line in text.splitlines()]


def read_parents(repository: Path, sha: str) -> list[str]:
    return git(repository, "show", "--no-patch", "--format=%P", sha).split()


def parse_commits(text: str) -> list[Rung]:
    """A rung for each line of git; a subject may contain characters that other programs take for line ends."""
    return [_parse_commit(line) for line in text.split("\n") if line]


def _parse_commit(line: str) -> Rung:
    try:
        sha, tree, short, when, parents, subject = line.rstrip("\n").split("\0")
    except ValueError:
        problem = f"git printed {line[:200]!r}, expected a commit."
        raise NightjarError(problem, "check the repository: `git fsck`") from None
    note = "merge" if " " in parents else None
    return Rung(kind="commit", name=f"{short} {subject}".strip(), source=sha, tree=tree, when=when, note=note)
