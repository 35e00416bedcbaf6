"""The difference between the last rung before the culprit and the culprit: packages with changelog links, or commits.

In: two rungs, and the later one's environment or the repository. Out: a list of `Change`. Links come from the metadata
of the installed packages (`Project-URL`, `Home-page`).
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Sequence
from pathlib import Path

from packaging.utils import canonicalize_name

from nightjar_ci.bisect.ladders.commits import SUBMODULE, git
from nightjar_ci.bisect.ladders.rung import Checkout, Ladder, Rung
from nightjar_ci.errors import NightjarError
from nightjar_ci.formats.documents import StrictModel

_CHANGELOG = re.compile(r"change|release|history|what.?s.?new|news", re.IGNORECASE)
_SOURCE = re.compile(r"source|repository|code|github|home", re.IGNORECASE)
_GITHUB = re.compile(r"https?://github\.com/([\w.-]+/[\w.-]+?)(?:\.git|/|$)")
# Prefix of the version in a release's tag, if it is not `v`.
TAG_PREFIXES = {"jax": "jax-v", "jaxlib": "jax-v"}
_FORGE = re.compile(r"(?:https://|git@)(?P<host>(?:github|gitlab)[\w.-]*)[/:](?P<name>[\w./-]+?)(?:\.git)?/?")
_MOST_LINES = 40


class Change(StrictModel):
    """A package, or a commit, that is different.

    Attributes:
        old, new: version; None if it is not there.
        links: addresses of its changelog, or of its sources.
        details: such as the files that a commit touched.
    """

    name: str
    old: str | None = None
    new: str | None = None
    links: tuple[str, ...] = ()
    details: tuple[str, ...] = ()


def diff_pins(before: Rung, after: Rung, prefix: Path | None) -> tuple[Change, ...]:
    """The packages whose version differs.

    Args:
        prefix: environment of the later one, whose metadata are read; None if there is none.
    """
    links = {} if prefix is None else read_links(prefix)
    names = sorted({*before.pins, *after.pins})
    changes = []
    for name in names:
        old, new = before.pins.get(name), after.pins.get(name)
        if old != new:
            compare = _compare_releases(name, old, new, links.get(name, ()))
            changes.append(Change(name=name, old=old, new=new, links=(*compare, *links.get(name, ())[:2])))
    return tuple(changes)


def describe_runtime(before: Rung, after: Rung) -> list[str]:
    """Which part cannot have changed: compiler and runtime (jaxlib, plugins) or Python; empty if both may differ.

    >>> old, new = (Rung(kind="packages", name=v, pins={"jax": v, "jaxlib": "0.5.0"}) for v in ("0.5.0", "0.5.1"))
    >>> describe_runtime(old, new)
    ['Both sides have jaxlib 0.5.0, so the compiler and the runtime are the same: the change is in Python code.']
    """
    old, new = before.runtime, after.runtime
    if not old or not new or before.pins == after.pins:
        return []
    if old == new:
        named = ", ".join(f"{name} {version}" for name, version in sorted(new.items()))
        return [f"Both sides have {named}, so the compiler and the runtime are the same: the change is in Python code."]
    others = {*before.pins, *after.pins} - {*old, *new}
    if all(before.pins.get(name) == after.pins.get(name) for name in others):
        return ["Nothing but jaxlib and its plugins differs: the change is in the compiler or the runtime."]
    return []


def _compare_releases(name: str, old: str | None, new: str | None, links: Sequence[str]) -> tuple[str, ...]:
    """GitHub's comparison of two releases, by the tags of the package; none if it is not on GitHub."""
    on_github = next((match for link in links if (match := _GITHUB.match(link))), None)
    if on_github is None or old is None or new is None or old.startswith("@") or new.startswith("@"):
        return ()
    prefix = TAG_PREFIXES.get(name, "v")
    return (f"https://github.com/{on_github[1]}/compare/{prefix}{old}...{prefix}{new}",)


def read_links(prefix: Path) -> dict[str, tuple[str, ...]]:
    """The changelog of each package of an environment, then its sources, if it names them."""
    folders = [str(path) for path in prefix.glob("lib/python*/site-packages")]
    links: dict[str, tuple[str, ...]] = {}
    for distribution in importlib.metadata.distributions(path=folders):
        urls = [text.partition(",") for text in distribution.metadata.get_all("Project-URL") or []]
        labelled = [(label.strip(), url.strip()) for label, _, url in urls if url.strip().startswith("http")]
        labelled += [("home", home) for home in distribution.metadata.get_all("Home-page") or []]
        changelogs = [url for label, url in labelled if _CHANGELOG.search(label)]
        sources = [url for label, url in labelled if _SOURCE.search(label)]
        links[canonicalize_name(distribution.metadata["Name"])] = tuple(dict.fromkeys([*changelogs, *sources]))
    return links


def describe_commits(ladder: Ladder, before: Rung, after: Rung) -> tuple[Change, ...]:
    """The commits between two rungs, latest first, with the files that they touched; on a way back, the undone ones."""
    changes: list[Change] = []
    for old, new in zip(ladder.checkouts(before), ladder.checkouts(after), strict=True):
        try:
            changes += _describe_between(old, new)
        except NightjarError:
            changes.append(Change(name=f"{new.name} {new.sha}".strip()))
    return tuple(changes) or (Change(name=after.note or after.name),)


def _describe_between(old: Checkout, new: Checkout) -> list[Change]:
    if old.sha == new.sha:
        return []
    done, undone = (
        git(old.repository, "log", "--first-parent", "--format=%H", f"{first.sha}..{last.sha}").split()
        for first, last in ((old, new), (new, old))
    )
    prefix = f"{new.name} ".lstrip()
    if not done:
        prefix = f"without {prefix}"
    commits = [_describe_commit(old.repository, sha) for sha in (done or undone)[:_MOST_LINES]]
    named = [change.model_copy(update={"name": f"{prefix}{change.name}"}) for change in commits]
    return [*_compare_commits(old, new), *named]


def find_public_address(repository: Path) -> str | None:
    """The page of the repository that this one was cloned from, if it is on a well-known forge."""
    try:
        origin = git(repository, "config", "--get", "remote.origin.url").strip()
    except NightjarError:
        return None
    match = _FORGE.fullmatch(origin)
    if match is None:
        return None
    return f"https://{match['host']}/{match['name']}"


def _compare_commits(old: Checkout, new: Checkout) -> list[Change]:
    address = find_public_address(old.repository)
    if address is None:
        return []
    separator = "/-/compare" if address.startswith("https://gitlab") else "/compare"
    return [Change(name="compare", links=(f"{address}{separator}/{old.sha}...{new.sha}",))]


def _describe_commit(repository: Path, sha: str) -> Change:
    head = git(repository, "show", "--no-patch", "--format=%h %s%x00%an, %cs", sha).strip()
    name, _, who = head.partition("\0")
    stat = git(repository, "show", "--stat=100", "--first-parent", "--format=", sha).strip("\n").splitlines()
    more = [f"... {len(stat) - _MOST_LINES} lines more"] if len(stat) > _MOST_LINES else []
    moved = _describe_submodules(repository, sha)
    return Change(name=name, details=(who, *moved, *(line.strip() for line in stat[:_MOST_LINES]), *more))


def _describe_submodules(repository: Path, sha: str) -> list[str]:
    raw = git(repository, "show", "--raw", "--abbrev=10", "--first-parent", "--format=", sha)
    moved = []
    for line in raw.splitlines():
        modes, _, path = line.partition("\t")
        old_mode, new_mode, old, new, *_ = [*modes.lstrip(":").split(), "", "", "", ""]
        if SUBMODULE in (old_mode, new_mode):
            moved.append(f"submodule {path}: {old} -> {new}")
    return moved
