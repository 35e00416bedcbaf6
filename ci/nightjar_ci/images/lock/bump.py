"""What would newer versions change, and do they resolve together? The lock files, made anew beside the checkout.

In: a checkout, and versions or commits that are asked for, or none for the newest. Out: the new lock files and what
differs, package by package; or, where they do not resolve, which of those asked for stands in the way. Nothing of the
checkout is touched until all of it resolves.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from nightjar_ci.errors import InputError
from nightjar_ci.formats.documents import write_text
from nightjar_ci.images.lock.commits import Commit, read_image_python, render_overrides
from nightjar_ci.images.lock.debian_day import PINS, move_day
from nightjar_ci.images.lock.locks import FOLDER, Lock, list_locks, make_locks
from nightjar_ci.images.process import ToolError

_ENTRY = re.compile(
    r"^(?P<name>[A-Za-z0-9._-]+)(?:==(?P<version>\S+)| @ git\+(?P<url>\S+?)@(?P<commit>[0-9a-f]{40})\b)", re.MULTILINE
)
_UNSATISFIABLE = re.compile(r"No solution found|unsatisfiable|no version of|Because ")
_PINS_FILE = "docker/locks/.pins.in"
_COMMITS_FILE = "docker/locks/.commits.in"
CHANGELOGS = {
    "flax": "github.com/google/flax/blob/main/CHANGELOG.md",
    "grain": "github.com/google/grain/blob/main/CHANGELOG.md",
    "jax": "docs.jax.dev/en/latest/changelog.html",
    "jaxlib": "docs.jax.dev/en/latest/changelog.html",
    "numpy": "numpy.org/doc/stable/release.html",
    "nvidia-cudnn": "docs.nvidia.com/deeplearning/cudnn/backend/latest/release-notes.html",
    "nvidia-dali": "github.com/NVIDIA/DALI/releases",
    "nvidia-nccl": "docs.nvidia.com/deeplearning/nccl/release-notes",
    "nvidia-c": "docs.nvidia.com/cuda/cuda-toolkit-release-notes",
    "optax": "github.com/google-deepmind/optax/releases",
    "orbax-checkpoint": "github.com/google/orbax/blob/main/checkpoint/CHANGELOG.md",
    "transformer-engine": "github.com/NVIDIA/TransformerEngine/releases",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A package whose locked versions differ; a lock for several Pythons may hold several versions.

    Attributes:
        package: its name.
        before, after: versions, the oldest first, then commits; empty where it is new, or gone.
        locks: names of the locks that change.
        changelog: address of its changelog, or of its commits where it is now one; None where unknown.
    """

    package: str
    before: tuple[str, ...]
    after: tuple[str, ...]
    locks: tuple[str, ...]
    changelog: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bump:
    """What newer versions change.

    Attributes:
        changes: by package.
        files: path of each lock that changes, relative to the checkout, to its new text; and of the pins, whose day of
            the OS moves with everything else.
        notes: locks that could not be made and stay as they are.
    """

    changes: tuple[Change, ...]
    files: Mapping[str, str]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """What is asked for: pins, and commits with the oldest Python that takes them."""

    pins: tuple[str, ...]
    commits: tuple[Commit, ...]
    python: str
    pre: bool
    upgrade: bool

    @property
    def names(self) -> list[str]:
        return [*self.pins, *map(str, self.commits)]

    def without(self, name: str) -> _Wanted:
        pins = tuple(pin for pin in self.pins if pin != name)
        return replace(self, pins=pins, commits=tuple(one for one in self.commits if str(one) != name))


def bump_locks(
    checkout: Path,
    pins: Sequence[str],
    *,
    pre: bool,
    on_step: Callable[[str], None],
    commits: Sequence[Commit] = (),
    upgrade: bool | None = None,
) -> Bump:
    """Resolves every lock anew, in a copy.

    Args:
        checkout: root of the checkout.
        pins: requirements such as `jax==0.12.0`: these move and others stay where they can; empty: everything moves to
            its newest.
        pre: take pre-releases, too.
        on_step: called as each lock begins.
        commits: packages taken from their repositories, on the Python of the images.
        upgrade: whether everything else moves to its newest; None: where there are no pins.

    Raises:
        InputError: a pin is no requirement, or the versions do not resolve: the message names which stands in the way.
        ToolError: uv is missing, or the package index is not reached.
    """
    wanted = _Wanted(
        pins=tuple(_check_pin(pin) for pin in pins),
        commits=tuple(commits),
        python=read_image_python(checkout) if commits else "",
        pre=pre,
        upgrade=not pins if upgrade is None else upgrade,
    )
    locks = list_locks(checkout)
    together, apart = ([lock for lock in locks if lock.apart is alone] for alone in (False, True))
    notes: list[str] = []
    with tempfile.TemporaryDirectory(prefix="nightjar-bump-") as folder:
        copy = Path(folder)
        _copy_inputs(checkout, copy, locks)
        before = {lock.path: _read(copy / lock.path) for lock in locks}
        begun: list[Lock] = []

        def on_lock(lock: Lock) -> None:
            begun.append(lock)
            on_step(f"resolving {lock.path}")

        try:
            _resolve(copy, together, wanted, on_lock=on_lock)
        except ToolError as error:
            if not _UNSATISFIABLE.search(error.message):
                raise
            tried = together[: len(begun)]
            raise _explain(checkout, tried, wanted, error=error, on_step=on_step) from None
        for lock in apart:
            try:
                _resolve(copy, [lock], wanted, on_lock=on_lock)
            except ToolError as error:
                notes.append(f"{lock.path} stays as it is: {error.message.splitlines()[-1].strip()}")
        after = {lock.path: _read(copy / lock.path) for lock in locks}
    if wanted.upgrade:
        before[PINS] = _read(checkout / PINS)
        after[PINS] = move_day(before[PINS], datetime.now(UTC))
    files = {path: text for path, text in after.items() if text != before[path]}
    return Bump(changes=compare_locks(before, after), files=files, notes=tuple(notes))


def compare_locks(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[Change, ...]:
    """The packages whose versions differ between two sets of lock files (path to text)."""
    old: dict[str, dict[str, set[str]]] = {}
    new: dict[str, dict[str, set[str]]] = {}
    history: dict[str, str] = {}
    for texts, versions in ((before, old), (after, new)):
        for path, text in texts.items():
            for entry in _ENTRY.finditer(text):
                version = entry["version"] or f"commit {entry['commit'][:12]}"
                versions.setdefault(entry["name"], {}).setdefault(Path(path).stem, set()).add(version)
                if entry["commit"] and versions is new:
                    history[entry["name"]] = f"{entry['url'].removesuffix('.git')}/commits/{entry['commit']}"
    changes = []
    for name in sorted(old.keys() | new.keys()):
        mine, theirs = old.get(name, {}), new.get(name, {})
        differing = sorted(lock for lock in mine.keys() | theirs.keys() if mine.get(lock) != theirs.get(lock))
        if differing:
            changes.append(
                Change(
                    package=name,
                    before=_ordered(mine.get(lock, set()) for lock in differing),
                    after=_ordered(theirs.get(lock, set()) for lock in differing),
                    locks=tuple(differing),
                    changelog=history.get(name) or find_changelog(name),
                )
            )
    return tuple(changes)


def find_changelog(package: str) -> str | None:
    """Where the changes of a package are told; None where unknown.

    >>> find_changelog("nvidia-cudnn-cu12")
    'https://docs.nvidia.com/deeplearning/cudnn/backend/latest/release-notes.html'
    """
    families = tuple(name for name in CHANGELOGS if name.startswith(("nvidia-", "transformer-")))
    known = [name for name in CHANGELOGS if package == name or (name in families and package.startswith(name))]
    return f"https://{CHANGELOGS[max(known, key=len)]}" if known else None


def write_bump(checkout: Path, bump: Bump) -> None:
    """Writes the new lock files, and the day of the OS, into the checkout."""
    for path, text in bump.files.items():
        write_text(checkout / path, text)


def _resolve(folder: Path, locks: Sequence[Lock], wanted: _Wanted, *, on_lock: Callable[[Lock], None]) -> None:
    (folder / _PINS_FILE).write_text("".join(f"{pin}\n" for pin in wanted.pins))
    (folder / _COMMITS_FILE).write_text(render_overrides(wanted.commits, wanted.python))
    options = (
        *(("--constraints", _PINS_FILE) if wanted.pins else ()),
        *(("--overrides", _COMMITS_FILE) if wanted.commits else ()),
        *(("--prerelease", "allow") if wanted.pre else ()),
    )
    make_locks(folder, locks, upgrade=wanted.upgrade, options=options, on_lock=on_lock)


def _explain(
    checkout: Path,
    locks: Sequence[Lock],
    wanted: _Wanted,
    *,
    error: ToolError,
    on_step: Callable[[str], None],
) -> InputError:
    """What stands in the way: the one without which the others resolve."""
    names = wanted.names
    blocking = list(names) if len(names) == 1 else []
    for name in names if len(names) > 1 else ():
        on_step(f"trying without {name}")
        with tempfile.TemporaryDirectory(prefix="nightjar-bump-") as folder:
            _copy_inputs(checkout, Path(folder), locks)
            try:
                _resolve(Path(folder), locks, wanted.without(name), on_lock=lambda lock: None)
            except ToolError:
                continue
        blocking.append(name)
    said = error.message.partition("it said:\n")[2].strip() or error.message
    what = f"{' or '.join(blocking)} stands in the way" if blocking else "no single version stands in the way"
    return InputError(
        f"{locks[-1].path} does not resolve: {what}. uv says:\n{said}\n",
        f"leave {blocking[0]} out, or ask for another version of it" if blocking else "ask for fewer versions at once",
    )


def _check_pin(pin: str) -> str:
    try:
        requirement = Requirement(pin)
    except InvalidRequirement as error:
        raise InputError(f"{pin!r} is no requirement: {str(error).splitlines()[0]}.", "such as jax==0.12.0") from None
    if not requirement.specifier:
        raise InputError(f"{pin!r} names no version.", f"such as {canonicalize_name(requirement.name)}==1.0")
    return pin


def _copy_inputs(checkout: Path, copy: Path, locks: Iterable[Lock]) -> None:
    shutil.copytree(checkout / FOLDER, copy / FOLDER)
    for source in {source for lock in locks for source in lock.sources if not source.startswith(FOLDER)}:
        (copy / source).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(checkout / source, copy / source)


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _ordered(versions: Iterable[set[str]]) -> tuple[str, ...]:
    return tuple(sorted({one for some in versions for one in some}, key=_age))


def _age(version: str) -> tuple[bool, Version, str]:
    commit = version.startswith("commit ")
    return commit, Version("0" if commit else version), version
