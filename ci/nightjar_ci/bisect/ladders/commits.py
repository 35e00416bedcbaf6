"""The ladder of commits between two commits of a repository, along first parents.

In: a repository and its two ends. Out: a ladder. If the culprit is a merge, a second ladder holds the commits of the
merged branch, from where it began to its tip. If that tip passes although the merge fails, the two sides of the merge
do not work together.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from nightjar_ci.bisect.ladders.rung import WITHOUT, Ladder, Rung
from nightjar_ci.bisect.ladders.same_builds import merge_same_builds
from nightjar_ci.errors import InputError, NightjarError
from nightjar_ci.images.process import run_captured
from nightjar_ci.untrusted.git import git_command, repository_command
from nightjar_ci.web.http import hide_passwords

MOST_HISTORY = 4096  # commits in which a good end is looked for
_FORMAT = "%H%x00%T%x00%h%x00%cI%x00%P%x00%s"


def open_repository(text: str, cache: Path) -> Path:
    """The folder of a repository: a folder as it is, an address as a clone that is kept and brought up to date.

    Raises:
        InputError: the folder is no repository.
        NightjarError: git is missing, or the address cannot be cloned.
    """
    if re.match(r"\w+://|[\w.-]+@[\w.-]+:", text):
        return _clone(text, cache)
    folder = Path(text).absolute()
    try:
        return Path(run_captured(git_command(folder, "rev-parse", "--show-toplevel")).strip())
    except NightjarError:
        hint = "name a folder of one, or its address, as file:///srv/name.git for one without a work tree"
        raise InputError(f"{text}: no git repository with a work tree.", hint) from None


def make_commit_ladder(repository: Path, old: str, new: str) -> Ladder:
    """The commits after one commit up to another, along first parents; the old end is the first rung.

    Raises:
        InputError: a commit is not there, or both have no common history.
    """
    first, last = find_commit(repository, old), find_commit(repository, new)
    if first == last:
        raise InputError(f"{old!r} and {new!r} are the same commit.", "there is nothing to bisect")
    if not is_ancestor(repository, first, last):
        return _make_diverged_ladder(repository, first, last)
    rungs = [read_commit(repository, first), *_between(repository, first, last)]
    notes = [] if first in _parents(repository, rungs[1].source) else [f"{old} is on a branch that was merged later."]
    kept, same = merge_same_builds(rungs)
    if len(kept) < 2:
        raise InputError(f"{old!r} and {new!r} hold the same files.", "there is nothing to bisect")
    return Ladder(rungs=kept, notes=(*notes, *same), repository=str(repository))


def make_history_ladder(repository: Path, new: str) -> Ladder:
    """The commits up to one, along first parents, 4,096 at most: the old end is to be found.

    Raises:
        InputError: there is none before it.
    """
    last = find_commit(repository, new)
    text = git(repository, "log", "--first-parent", f"--max-count={MOST_HISTORY}", f"--format={_FORMAT}", last)
    rungs = parse_commits(text)[::-1]
    if len(rungs) < 2:
        raise InputError(f"{new!r} has no commit before it.", "there is nothing to bisect")
    return Ladder(rungs=tuple(rungs), repository=str(repository))


def _make_diverged_ladder(repository: Path, first: str, last: str) -> Ladder:
    """From one branch back to where it left the other, and along that to its end.

    Each rung differs from the one before by one commit, undone on the way back and done on the way on. A change on the
    way back is a fix that the other branch does not have.
    """
    try:
        base = git(repository, "merge-base", first, last).strip()
    except NightjarError:
        raise InputError(f"{first[:12]} and {last[:12]} have no common history.", "bisect each by itself") from None
    own = [read_commit(repository, base), *_between(repository, base, first)]
    back = [
        rung.model_copy(update={"note": f"{WITHOUT}{later.name}"})
        for rung, later in zip(reversed(own[:-1]), reversed(own[1:]), strict=True)
    ]
    rungs = [own[-1], *back, *_between(repository, base, last)]
    note = f"The ends are on two branches: the ladder goes back to where they part, {base[:12]}, and on from there."
    return Ladder(rungs=tuple(rungs), notes=(note,), repository=str(repository))


def make_branch_ladder(repository: Path, merge: str) -> Ladder | None:
    """The commits that a merge brought in, from where their branch began; None where it is no merge of one branch."""
    parents = _parents(repository, merge)
    if len(parents) != 2:
        return None
    began = git(repository, "merge-base", *parents).strip()
    rungs = [read_commit(repository, began), *_between(repository, parents[0], parents[1])]
    kept, same = merge_same_builds(rungs)
    if len(kept) > 2:
        notes = (f"the branch that {merge[:12]} merged", *same)
        return Ladder(rungs=kept, notes=notes, repository=str(repository))
    return None


def is_ancestor(repository: Path, first: str, last: str) -> bool:
    """Whether one commit is in the history of another."""
    return git(repository, "rev-list", "--count", "--max-count=1", first, f"^{last}").strip() == "0"


def find_commit(repository: Path, revision: str) -> str:
    """The full name of a commit.

    Raises:
        InputError: there is none.
    """
    try:
        return git(repository, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}").strip()
    except NightjarError:
        raise InputError(
            f"{revision!r} is not a commit of {repository}.", "check the spelling, or run `git fetch`"
        ) from None


def read_commit(repository: Path, sha: str) -> Rung:
    """A commit as a rung."""
    return _parse_commit(git(repository, "show", "--no-patch", f"--format={_FORMAT}", sha))


def git(folder: Path, *arguments: str) -> str:
    """What git prints in the top folder of a repository, or in a bare clone of ours.

    Raises:
        NightjarError: it failed.
    """
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


def _between(repository: Path, first: str, last: str) -> list[Rung]:
    text = git(repository, "log", "--first-parent", "--reverse", f"--format={_FORMAT}", f"{first}..{last}")
    return parse_commits(text)


def _parents(repository: Path, sha: str) -> list[str]:
    return git(repository, "show", "--no-patch", "--format=%P", sha).split()


def parse_commits(text: str) -> list[Rung]:
    """A rung for each line of git; a subject may hold what other programs take for the end of a line.

    Raises:
        NightjarError: a line is not a commit.
    """
    return [_parse_commit(line) for line in text.split("\n") if line]


def _parse_commit(line: str) -> Rung:
    try:
        sha, tree, short, when, parents, subject = line.rstrip("\n").split("\0")
    except ValueError:
        problem = f"git printed {line[:200]!r}, expected a commit."
        raise NightjarError(problem, "check the repository: `git fsck`") from None
    note = "merge" if " " in parents else None
    return Rung(kind="commit", name=f"{short} {subject}".strip(), source=sha, tree=tree, when=when, note=note)
