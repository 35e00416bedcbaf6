"""Lock file updates, resolved in a copy of the checkout.

In: a checkout, and requested versions or commits, or none for the newest. Out: the new lock files and the changed
packages; or, if they do not resolve, which of the requested versions conflict. The checkout is unchanged until all
locks resolve.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import tomllib
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
from nightjar_ci.images.lock.jax_day import FILE as DAY_FILE
from nightjar_ci.images.lock.jax_day import ServedDay, keep_day
from nightjar_ci.images.lock.locks import FOLDER, Lock, LockError, drop_flavors, list_ancestry, list_locks, make_locks
from nightjar_ci.tools import ToolError

_ENTRY = re.compile(
    r"^(?P<name>[A-Za-z0-9._-]+)(?:==(?P<version>\S+)| @ git\+(?P<url>\S+?)@(?P<commit>[0-9a-f]{40})\b)", re.MULTILINE
)
_UNSATISFIABLE = re.compile(r"No solution found|unsatisfiable|no version of|Because ")
_PINS_FILE = "docker/locks/.pins.in"
_COMMITS_FILE = "docker/locks/.commits.in"
CHANGELOGS = tomllib.loads(Path(__file__).with_name("changelogs.toml").read_text(encoding="utf-8"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A package whose locked versions differ; a lock for several Pythons may have several versions.

    Attributes:
        before, after: versions, oldest first, then commits; empty if the package is new, or gone.
        changelog: URL of its changelog, or of its commits if it is locked to one; None if unknown.
    """

    package: str
    before: tuple[str, ...]
    after: tuple[str, ...]
    locks: tuple[str, ...]
    changelog: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bump:
    """The result of a lock update.

    Attributes:
        files: path of each changed file, relative to the checkout, to its new text: locks, the pins file if the Debian
            day moves, and `nightly.json` if JAX's day does (an empty text: the file is deleted).
        notes: messages about locks that could not be resolved and stay unchanged.
    """

    changes: tuple[Change, ...]
    files: Mapping[str, str]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """The requested pins, and commits with the oldest Python that takes them."""

    pins: tuple[str, ...]
    commits: tuple[Commit, ...]
    python: str
    upgrade: bool
    day: ServedDay | None

    @property
    def names(self) -> list[str]:
        day = [] if self.day is None else [str(self.day.day)]
        return [*self.pins, *map(str, self.commits), *day]

    def without(self, name: str) -> _Request:
        if self.day is not None and name == str(self.day.day):
            return replace(self, day=None)
        pins = tuple(pin for pin in self.pins if pin != name)
        return replace(self, pins=pins, commits=tuple(commit for commit in self.commits if str(commit) != name))


def bump_locks(
    checkout: Path,
    pins: Sequence[str],
    *,
    on_step: Callable[[str], None],
    commits: Sequence[Commit] = (),
    upgrade: bool | None = None,
    day: ServedDay | None = None,
) -> Bump:
    """Resolves every lock in a copy of the checkout.

    Args:
        pins: requirements such as `jax==0.12.0`: these packages move, others only if they must; empty: every package
            moves to its newest version.
        commits: packages to take from their repositories, on the Python of the images.
        upgrade: whether all other packages move to their newest versions; None: only without pins.
        day: a day of JAX's nightly wheels, which replaces JAX's releases on the Pythons of the images.
    """
    request = _Request(
        pins=tuple(_check_pin(pin) for pin in pins),
        commits=tuple(commits),
        python=read_image_python(checkout) if commits else "",
        upgrade=not pins if upgrade is None else upgrade,
        day=day,
    )
    lacking = {} if day is None else day.lacking
    locks = drop_flavors(list_locks(checkout), lacking)
    notes = [
        f"{FOLDER}/jax-{flavor}.txt and what is locked on it are unchanged: no wheel of {gaps[0]}."
        for flavor, gaps in lacking.items()
    ]
    with tempfile.TemporaryDirectory(prefix="nightjar-bump-") as folder:
        copy = Path(folder)
        _copy_inputs(checkout, copy, locks)
        before = {lock.path: _read(copy / lock.path) for lock in locks}
        try:
            failures = _resolve(copy, locks, request, on_lock=lambda lock: on_step(f"resolving {lock.path}"))
        except LockError as failure:
            if not _UNSATISFIABLE.search(failure.message):
                raise
            raise _explain(checkout, list_ancestry(locks, failure.lock), request, failure, on_step) from None
        notes += [
            f"{failure.lock.path} is unchanged: {failure.message.splitlines()[-1].strip()}" for failure in failures
        ]
        after = {lock.path: _read(copy / lock.path) for lock in locks}
    before[DAY_FILE] = _read(checkout / DAY_FILE)
    after[DAY_FILE] = keep_day(before[DAY_FILE] if day is None else day.document, after)
    if request.upgrade:
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
        was, now = old.get(name, {}), new.get(name, {})
        differing = sorted(lock for lock in was.keys() | now.keys() if was.get(lock) != now.get(lock))
        if differing:
            changes.append(
                Change(
                    package=name,
                    before=_sort_versions(was.get(lock, set()) for lock in differing),
                    after=_sort_versions(now.get(lock, set()) for lock in differing),
                    locks=tuple(differing),
                    changelog=history.get(name) or find_changelog(name),
                )
            )
    return tuple(changes)


def find_changelog(package: str) -> str | None:
    """The URL of a package's changelog; None if unknown.

    >>> find_changelog("nvidia-cudnn-cu12")
    'https://docs.nvidia.com/deeplearning/cudnn/backend/latest/release-notes.html'
    """
    families = tuple(name for name in CHANGELOGS if name.startswith(("nvidia-", "transformer-")))
    matches = [name for name in CHANGELOGS if package == name or (name in families and package.startswith(name))]
    if matches:
        return f"https://{CHANGELOGS[max(matches, key=len)]}"
    return None


def write_bump(checkout: Path, bump: Bump) -> None:
    """Writes the new lock files, and the days of Debian and JAX, into the checkout."""
    for path, text in bump.files.items():
        if path == DAY_FILE and not text:
            (checkout / path).unlink()
        else:
            write_text(checkout / path, text)


def _resolve(
    folder: Path, locks: Sequence[Lock], request: _Request, *, on_lock: Callable[[Lock], None]
) -> tuple[LockError, ...]:
    day_pins = () if request.day is None else request.day.pins
    pins = (*request.pins, *day_pins)
    (folder / _PINS_FILE).write_text("".join(f"{pin}\n" for pin in pins))
    (folder / _COMMITS_FILE).write_text(render_overrides(request.commits, request.python))
    options: list[str] = []
    if pins:
        options += ["--constraints", _PINS_FILE]
    if request.commits:
        options += ["--overrides", _COMMITS_FILE]
    variables: Mapping[str, str] = {}
    if request.day is not None:
        options += request.day.options
        variables = request.day.variables
    return make_locks(folder, locks, upgrade=request.upgrade, options=options, on_lock=on_lock, variables=variables)


def _explain(
    checkout: Path, locks: Sequence[Lock], request: _Request, error: ToolError, on_step: Callable[[str], None]
) -> InputError:
    """The conflict: each requested version without which the others resolve."""
    names = request.names
    conflicts = [name for name in names if len(names) == 1 or _resolves(checkout, locks, request, name, on_step)]
    output = error.message.partition("last output:\n")[2].strip() or error.message
    cause, hint = "no single version causes the conflict", "request fewer versions at once"
    if conflicts:
        cause = f"{' or '.join(conflicts)} causes the conflict"
        hint = f"leave out {conflicts[0]}, or request another version of it"
    return InputError(f"{locks[-1].path} does not resolve: {cause}. Output of uv:\n{output}\n", hint)


def _resolves(
    checkout: Path, locks: Sequence[Lock], request: _Request, without: str, on_step: Callable[[str], None]
) -> bool:
    on_step(f"trying without {without}")
    with tempfile.TemporaryDirectory(prefix="nightjar-bump-") as folder:
        _copy_inputs(checkout, Path(folder), locks)
        try:
            _resolve(Path(folder), locks, request.without(without), on_lock=lambda lock: None)
        except ToolError:
            return False
    return True


def _check_pin(pin: str) -> str:
    try:
        requirement = Requirement(pin)
    except InvalidRequirement as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{pin!r} is not a valid requirement: {reason}.", "write it like jax==0.12.0") from None
    if not requirement.specifier:
        raise InputError(f"{pin!r} has no version.", f"write it like {canonicalize_name(requirement.name)}==1.0")
    return pin


def _copy_inputs(checkout: Path, copy: Path, locks: Iterable[Lock]) -> None:
    shutil.copytree(checkout / FOLDER, copy / FOLDER)
    for source in {source for lock in locks for source in lock.sources if not source.startswith(FOLDER)}:
        (copy / source).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(checkout / source, copy / source)


def _read(path: Path) -> str:
    if path.is_file():
        return path.read_text(encoding="utf-8")
    return ""


def _sort_versions(versions: Iterable[set[str]]) -> tuple[str, ...]:
    return tuple(sorted(set().union(*versions), key=_sort_key))


def _sort_key(version: str) -> tuple[bool, Version, str]:
    if version.startswith("commit "):
        return True, Version("0"), version
    return False, Version(version), version
