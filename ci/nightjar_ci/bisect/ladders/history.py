"""The history of a git repository, read commit by commit.

In: a folder or an address, and revisions. Out: full names of commits, and commits as rungs of a ladder.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from nightjar_ci.bisect.ladders.rung import Rung
from nightjar_ci.errors import InputError, NightjarError
from nightjar_ci.images.process import run_captured
from nightjar_ci.untrusted.git import git_command, repository_command
from nightjar_ci.web.http import hide_passwords

_FORMAT = "%H%x00%T%x00%h%x00%cI%x00%P%x00%s"


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


def is_ancestor(repository: Path, first: str, last: str) -> bool:
    """Whether one commit is in the history of another."""
    return git(repository, "rev-list", "--count", "--max-count=1", first, f"^{last}").strip() == "0"


def find_commit(repository: Path, revision: str) -> str:
    """The full name of a commit."""
    try:
        return git(repository, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}").strip()
    except NightjarError:
        raise InputError(
            f"{revision!r} is not a commit of {repository}.", "check the spelling, or run `git fetch`"
        ) from None


def read_commit(repository: Path, sha: str) -> Rung:
    return _parse_commit(git(repository, "show", "--no-patch", f"--format={_FORMAT}", sha))


def git(folder: Path, *arguments: str) -> str:
    """Output of git in the top folder of a repository, or in a bare clone of ours."""
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
    text = git(repository, "log", "--first-parent", "--reverse", f"--format={_FORMAT}", f"{first}..{last}")
    return parse_commits(text)


def read_last(repository: Path, sha: str, most: int) -> list[Rung]:
    """The commits up to one, along first parents, the oldest first."""
    text = git(repository, "log", "--first-parent", f"--max-count={most}", f"--format={_FORMAT}", sha)
    return parse_commits(text)[::-1]


def find_last_before(repository: Path, sha: str, moment_s: float) -> str | None:
    """The last commit in another one's history, along first parents, that is not newer than a Unix time."""
    return git(repository, "rev-list", "-1", "--first-parent", f"--before=@{moment_s:.0f}", sha).strip() or None


def find_merge_base(repository: Path, first: str, last: str) -> str:
    """The latest commit that is in the history of both."""
    try:
        return git(repository, "merge-base", first, last).strip()
    except NightjarError:
        raise InputError(f"{first[:12]} and {last[:12]} have no common history.", "bisect each by itself") from None


def list_submodules(repository: Path, sha: str) -> list[str]:
    """The paths of the submodules that a commit records."""
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
