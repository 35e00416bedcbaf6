"""Pins: the commit of another repository that a repository is built with.

In: a repository, a commit of it and a path. Out: the commits that the path names there. A submodule names the one that
is recorded, a file every full SHA-1 in it, such as `XLA_COMMIT = "..."` in JAX's `third_party/xla/revision.bzl`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nightjar_ci.bisect.ladders.history import find_commit, git
from nightjar_ci.errors import InputError

_SHA = re.compile(r"(?<![0-9a-f])[0-9a-f]{40}(?![0-9a-f])")
_SUBMODULE = "160000"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """A path in the repository `holder` that names a commit of another one."""

    holder: str
    path: str

    def __str__(self) -> str:
        return f"{self.holder}:{self.path}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinned:
    """The value of a pin at a commit.

    Attributes:
        commits: that it names.
        digest: git's digest of its contents.
        is_submodule: whether it is a submodule.
    """

    commits: tuple[str, ...]
    digest: str
    is_submodule: bool


def read_pin(repository: Path, commit: str, path: str, before: Pinned | None = None) -> Pinned | None:
    """The pin in a path at a commit; None if the commit does not have the path.

    Args:
        commit: at which it is read.
        path: of a file or a submodule.
        before: its value at another commit: equal contents are not read again.
    """
    entry = git(repository, "ls-tree", commit, "--", path).partition("\t")[0].split()
    if not entry:
        return None
    mode, _, digest = entry
    if before is not None and before.digest == digest:
        return before
    if mode == _SUBMODULE:
        return Pinned(commits=(digest,), digest=digest, is_submodule=True)
    commits = tuple(dict.fromkeys(_SHA.findall(git(repository, "show", f"{commit}:{path}"))))
    return Pinned(commits=commits, digest=digest, is_submodule=False)


def find_pinned(repositories: Mapping[str, Path], pin: Pin, commits: Iterable[str]) -> dict[str, str]:
    """The repositories besides the holder that have one of the commits, each with the commit."""
    named: dict[str, str] = {}
    for name, repository in repositories.items():
        for commit in commits:
            if name != pin.holder and name not in named and _has(repository, commit):
                named[name] = commit
    return named


def complete_ends(
    repositories: Mapping[str, Path], pins: Sequence[Pin], named: Mapping[str, str], option: str
) -> dict[str, str]:
    """The commit of each repository at one end: the named ones and the ones that they pin."""
    ends = {name: find_commit(repositories[name], revision) for name, revision in named.items()}
    waiting, unknown = list(pins), []
    while ready := [pin for pin in waiting if pin.holder in ends]:
        waiting = [pin for pin in waiting if pin not in ready]
        for pin in ready:
            pinned = read_pin(repositories[pin.holder], ends[pin.holder], pin.path)
            found_in = find_pinned(repositories, pin, () if pinned is None else pinned.commits)
            if not found_in:
                unknown.append(_describe_unknown(pin, ends[pin.holder], pinned))
            ends = {**found_in, **ends}
    missing = [name for name in repositories if name not in ends]
    if missing and unknown:
        raise InputError(unknown[0], "name the path from the top folder of the repository, or fetch the other one")
    if missing:
        hint = f"{option} {missing[0]}=REV, or --pin HOLDER:PATH where a file or submodule of another one names it"
        raise InputError(f"{option}: no commit of {', '.join(missing)} is named or pinned.", hint)
    return ends


def _describe_unknown(pin: Pin, commit: str, pinned: Pinned | None) -> str:
    """Why a pin names no commit of another repository."""
    if pinned is None:
        return f"--pin {pin}: {commit[:12]} of {pin.holder} has no such file or submodule."
    if not pinned.commits:
        return f"--pin {pin}: at {commit[:12]}, there is no full SHA-1 of a commit in it."
    return f"--pin {pin}: at {commit[:12]}, it names {pinned.commits[0]}, which no other repository has."


def _has(repository: Path, commit: str) -> bool:
    try:
        find_commit(repository, commit)
    except InputError:
        return False
    return True
