"""The owners of changed files, from a repository's CODEOWNERS.

In: the folder of a repository, and two commits or some paths. Out: owners such as `@org/team`, owners of the most
changed files first. The last line that matches a file decides.

Source: https://docs.github.com/en/repositories/managing-your-repositorys-settings-and-features/customizing-your-repository/about-code-owners
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from nightjar_ci.errors import NightjarError
from nightjar_ci.tools import run_captured
from nightjar_ci.untrusted.git import git_command

PLACES = (".github/CODEOWNERS", "CODEOWNERS", "docs/CODEOWNERS")  # in this order; the first is the one
MOST_ASKED = 3

Rules = Sequence[tuple[re.Pattern[str], tuple[str, ...]]]


def read_rules(repository: Path) -> Rules:
    """The lines of CODEOWNERS, in their order; none if the repository has no such file."""
    for place in PLACES:
        try:
            text = (repository / place).read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        lines = (line.partition("#")[0].split() for line in text.splitlines())
        return [(compile_pattern(words[0]), tuple(words[1:])) for words in lines if words]
    return []


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """A pattern of CODEOWNERS as an expression that whole paths match, relative to the repository.

    >>> bool(compile_pattern("/docs/").fullmatch("docs/a/b.md")), bool(compile_pattern("*.py").fullmatch("a/b.py"))
    (True, True)
    >>> bool(compile_pattern("docs/*").fullmatch("docs/a/b.md")), bool(compile_pattern("apps/").fullmatch("x/apps/y"))
    (False, True)
    """
    body = pattern.strip("/")
    anchored = pattern.startswith("/") or "/" in body
    parts = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    text = "".join(parts.get(part) or re.escape(part) for part in re.split(r"(\*\*/|\*\*|\*|\?)", body))
    start = "" if anchored else "(?:.*/)?"
    end = "(?:/.*)?"  # a folder owns its contents
    if pattern.endswith("/"):
        end = "/.*"
    elif body.endswith("/*"):
        end = ""  # the files of a folder, and none below
    return re.compile(start + text + end)


def find_owners(rules: Rules, paths: Iterable[str]) -> tuple[str, ...]:
    """The owners of files, owners of the most files first."""
    counts: Counter[str] = Counter()
    for path in paths:
        matching = [owners for pattern, owners in rules if pattern.fullmatch(path)]
        counts.update(matching[-1] if matching else ())
    return tuple(owner for owner, _ in counts.most_common(MOST_ASKED))


def find_asked(repository: Path, commits: tuple[str, str] | None, otherwise: Path) -> tuple[str, ...]:
    """The owners to ask about a change.

    Args:
        otherwise: a file whose owners are asked then, and if git lacks the commits.
    """
    rules = read_rules(repository)
    if not rules:
        return ()
    paths: list[str] = []
    if commits is not None:
        names = git_command(repository, "diff", "--name-only", "-z", "--end-of-options", *commits, "--")
        try:
            paths = [path for path in run_captured(names).split("\0") if path]
        except NightjarError:
            paths = []  # a shallow clone, or another repository
    if not paths:
        absolute, root = otherwise.absolute(), repository.absolute()
        paths = [(absolute.relative_to(root) if absolute.is_relative_to(root) else otherwise).as_posix()]
    return find_owners(rules, paths)
