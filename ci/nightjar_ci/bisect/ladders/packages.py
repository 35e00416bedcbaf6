"""The ladder of environments between two sets of package versions: each state of the timeline that uv can install.

In: the versions at both ends, and the other packages of every environment. Out: a ladder of full locks. A package that
is not on the ladder keeps its version from the old end unless a package on the ladder forces another one. So a rung
differs from its neighbour by one release and the packages that it requires. Where uv's resolver refuses a state, the
packages that stay may take other versions, and then later ones than the rung's date. A state that it refuses still is
unknown: uv's reason is noted, and a change at the next rung is one of both. If Python moves too, it moves last, in one
step: packages are resolved for the Python of each rung.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path

from nightjar_ci.bisect.ladders.rung import PYTHON, SIDE_BY_SIDE, Ladder, OnLine, Rung, merge_same_builds, requirement
from nightjar_ci.bisect.ladders.timeline import Step, as_released, merge_timelines
from nightjar_ci.environments import uv
from nightjar_ci.environments.lock import read_pins
from nightjar_ci.environments.nightly_days import complete_day, read_nightly_releases
from nightjar_ci.environments.run_uv import find_index
from nightjar_ci.environments.uv import FOLLOWS_JAX
from nightjar_ci.errors import EnvironmentFailedError, InputError
from nightjar_ci.jax_nightly.days import read_date
from nightjar_ci.web.http import hide_passwords
from nightjar_ci.web.package_index import Release, read_releases

_LONGEST_REASON = 300

Releases = Mapping[str, Sequence[Release]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """Contents of every environment of a ladder, besides the packages that move.

    Attributes:
        wanted: requirements, resolved as of each rung's date if `dated`.
        folders: packages installed from a folder: name to folder and editable.
        python: interpreter or version as uv understands it; this one if None.
        dated: the resolver sees no file that came later than a day after the rung's release.
    """

    wanted: tuple[str, ...] = ()
    pins: Mapping[str, str] = field(default_factory=dict)
    folders: Mapping[str, tuple[Path, bool]] = field(default_factory=dict)
    python: str | None = None
    dated: bool = True


def make_package_ladder(
    old: Mapping[str, str], new: Mapping[str, str], base: Base, index_url: str | None, on_line: OnLine
) -> Ladder:
    """The ladder between two sets of versions.

    Args:
        old, new: version of each package, canonical names, the old end and the new one.
        base: the other contents of every environment.
        index_url: the simple index that is asked for releases; uv's own if None.
    """
    differing = [name for name in old if name in new and old[name] != new[name]]
    nothing = InputError("the good and the bad end hold the same versions.", "there is nothing to bisect")
    if not differing:
        raise nothing
    on_line(f"asking the index for releases of {', '.join(differing)}")
    index_url = index_url or find_index()
    releases = {name: _releases(name, new[name], index_url) for name in differing}
    old, new = ({name: as_released(end[name], releases.get(name, ())) for name in end} for end in (old, new))
    steps = merge_timelines(old, new, releases)
    if not steps:
        raise nothing
    moving = next(iter(releases))
    latest = Release(version=old[moving], uploaded=_youngest(old, releases))
    first = Step(package=moving, release=latest, pins=dict(old))
    on_line(f"resolving {len(steps) + 1} environments")
    start = _get_end(old, _try_resolve(first, base, {}, releases), releases)
    followers = {name for name in start if "jax" in differing and FOLLOWS_JAX.fullmatch(name)}
    prefer = {name: version for name, version in start.items() if name not in {*differing, *followers}}
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        resolved = list(pool.map(lambda step: _try_resolve(step, base, prefer, releases), steps))
    _get_end(new, resolved[-1], releases)
    rungs = [_rung(first, start, differing)]
    notes, refused = [], []
    for step, pins in zip(steps, resolved, strict=True):
        if isinstance(pins, EnvironmentFailedError):
            notes.append(f"{_name(step, differing)} cannot be installed: {_reason(pins)}")
            refused.append(_name(step, differing))
            continue
        rung = _rung(step, pins, differing)
        if refused and len(differing) == 1:
            gap = f"or {', '.join(refused)}, which cannot be installed"
            note = ", ".join(filter(None, (rung.note, gap)))
            rung = rung.model_copy(update={"note": note, "unknown": tuple(refused)})
        rungs.append(rung)
        refused = []
    kept, same = merge_same_builds(rungs)
    return Ladder(rungs=kept, notes=(*notes, *same), folders=dict(base.folders))


def resolve(
    lines: Sequence[str], *, python: str | None, prefer: Mapping[str, str], before: datetime | None
) -> dict[str, str]:
    """All packages of an environment that meets requirements, by uv's resolver.

    Args:
        prefer: versions to keep if the requirements allow it.
        before: files that came later are not seen.

    Returns:
        Canonical name to version, or to `@ address`.
    """
    lines = complete_day(lines)
    options = () if before is None else ("--exclude-newer", before.isoformat())
    preferred = [requirement(*pin) for pin in sorted(prefer.items())]
    return read_pins(uv.resolve(",".join(lines), lines, *options, python=python, prefer=preferred))


def _get_end(
    end: Mapping[str, str], resolved: dict[str, str] | EnvironmentFailedError, releases: Releases
) -> dict[str, str]:
    """The packages of an end, which must be one that can be installed."""
    if not isinstance(resolved, EnvironmentFailedError):
        return resolved
    for name, every in releases.items():
        if every and end[name] not in {release.version for release in every}:
            raise InputError(f"the package index has no {name} {end[name]}: its newest is {every[-1].version}.")
    raise resolved


def _releases(name: str, new: str, index_url: str) -> list[Release]:
    if new.startswith("@") or name == PYTHON:
        return []
    releases = read_releases(name, index_url)
    if read_date(new):
        return [*releases, *read_nightly_releases(name)]
    return releases


def _youngest(pins: Mapping[str, str], releases: Releases) -> datetime | None:
    """When the latest of some versions was released; None if no date is known."""
    uploads = [
        release.uploaded for name, every in releases.items() for release in every if release.version == pins[name]
    ]
    return max((upload for upload in uploads if upload is not None), default=None)


def _try_resolve(
    step: Step, base: Base, prefer: Mapping[str, str], releases: Releases
) -> dict[str, str] | EnvironmentFailedError:
    kept = {name: version for name, version in base.pins.items() if not version.startswith("@")}
    freed = {name: version for name, version in base.pins.items() if name not in kept}
    relaxed = replace(base, wanted=(*base.wanted, *sorted(kept)), pins=freed)
    attempts = [base]
    if kept:
        attempts.append(relaxed)
    if base.dated:
        attempts.append(replace(relaxed, dated=False))
    errors = []
    for contents in attempts:
        try:
            return _resolve(step, contents, {**kept, **prefer}, releases)
        except EnvironmentFailedError as error:
            errors.append(error)
    return errors[0]


def _resolve(step: Step, base: Base, prefer: Mapping[str, str], releases: Releases) -> dict[str, str]:
    """The environment of a state; jaxlib and the plugins match jax's version unless the caller pins them.

    Packages of the old end may be younger than the release that moves.
    """
    follows = "jax" in step.pins and "jaxlib" not in step.pins
    constant = {name: version for name, version in base.pins.items() if name not in step.pins}
    moving = {name: version for name, version in step.pins.items() if name != PYTHON}
    interpreter = {name: version for name, version in step.pins.items() if name == PYTHON}
    python = step.pins.get(PYTHON, base.python)
    followers = [name for name in constant if follows and FOLLOWS_JAX.fullmatch(name)]
    lines = [requirement(*pin) for pin in moving.items()] + list(base.wanted)
    lines += [requirement(*pin) for pin in constant.items() if pin[0] not in followers]
    youngest = _youngest(step.pins, releases)
    before = youngest + timedelta(days=1) if base.dated and youngest and step.release.uploaded else None
    if follows:
        twins = [requirement(name, step.pins["jax"]) for name in dict.fromkeys(["jaxlib", *followers])]
        try:
            return resolve([*lines, *twins], python=python, prefer=prefer, before=before) | interpreter
        except EnvironmentFailedError:
            pass  # a release of jax alone: its resolver knows which jaxlib goes with it
    return resolve(lines, python=python, prefer=prefer, before=before) | interpreter


def _rung(step: Step, pins: dict[str, str], differing: Sequence[str]) -> Rung:
    when = step.release.uploaded
    return Rung(
        kind="packages",
        name=_name(step, differing),
        when=None if when is None else when.isoformat(timespec="minutes"),
        pins=pins,
        note="yanked" if step.release.yanked else None,
    )


def _name(step: Step, differing: Sequence[str]) -> str:
    return ", ".join(f"{name} {step.pins[name]}" for name in differing)


def _reason(error: EnvironmentFailedError) -> str:
    said = error.message.partition(":\n")[2] or error.message
    text = hide_passwords(" ".join(line.strip(" │├╰─▶") for line in said.splitlines())).strip()
    text = text.partition("cause: ")[2] or text
    if len(text) <= _LONGEST_REASON:
        return text
    return text[: _LONGEST_REASON - 3] + "..."
