"""The day of JAX's nightly wheels that the locks hold: `docker/locks/nightly.json`.

In: a checkout, the index of nightly wheels, and a date or none. Out: the day, served to uv as an index; and a document
with its date, versions and commits, which becomes labels of the images. Locks of releases have no such document.
"""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from packaging.version import Version

from nightjar_ci.errors import InputError
from nightjar_ci.formats.documents import StrictModel, read_document
from nightjar_ci.images.tree import find_flavors, name_cell
from nightjar_ci.jax_nightly.days import Day, Target, find_gaps, find_jax_commit, find_xla_commit

FILE = "docker/locks/nightly.json"


class NightlyDay(StrictModel):
    """The day of JAX in the locks.

    Attributes:
        commits: `jax` and `xla`, as far as they are known.
        images: patterns of the images for which it has every wheel; none: all.
    """

    date: str
    versions: dict[str, str]
    commits: dict[str, str]
    images: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedDay:
    """A day that uv can lock.

    Attributes:
        options, variables: as uv needs them to find it.
        python: the oldest Python on which it replaces releases.
        document: the text of `docker/locks/nightly.json`.
        lacking: flavors that nobody asked for, with wheels that the day lacks for them: their locks stay.
    """

    day: Day
    options: tuple[str, ...]
    variables: Mapping[str, str]
    python: str
    document: str
    lacking: Mapping[str, Sequence[str]]

    @property
    def pins(self) -> tuple[str, ...]:
        return self.day.pin(self.python)


_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}


def list_targets(checkout: Path, patterns: Sequence[str]) -> tuple[Target, ...]:
    """What needs wheels, the oldest Python first.

    Args:
        patterns: of cells of the tree, such as `cpu-*` and `cuda12-py3.13-amd64`; none: all.
    """
    pins = json.loads((checkout / "docker/versions.json").read_text(encoding="utf-8"))
    pythons = sorted(pins["variable"]["GROUND_FLOORS"]["default"], key=Version)
    cells = {
        name_cell(flavor, python, arch): Target(flavor, python, machine)
        for python in pythons
        for arch, machine in _MACHINES.items()
        for flavor in find_flavors(checkout)
    }
    for pattern in patterns:
        if not fnmatch.filter(cells, pattern):
            raise InputError(f"--for: no image is {pattern!r}.", f"expected one of {', '.join(cells)}, or a glob")
    wanted = patterns or ("*",)
    return tuple(target for cell, target in cells.items() if any(fnmatch.fnmatch(cell, pattern) for pattern in wanted))


def find_lacking(checkout: Path, day: Day, patterns: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The flavors that no pattern names, with the wheels that the day lacks for them."""
    asked = {target.flavor for target in list_targets(checkout, patterns)}
    gaps: dict[str, tuple[str, ...]] = {}
    for flavor in find_flavors(checkout):
        if flavor not in asked and (found := find_gaps(day, list_targets(checkout, [f"{flavor}-*"]))):
            gaps[flavor] = found
    return gaps


def describe_day(day: Day, images: Sequence[str]) -> NightlyDay:
    """The document of a day, with the commits that can be found."""
    commits: dict[str, str] = {}
    if jax := find_jax_commit(day):
        commits["jax"] = jax
        if xla := find_xla_commit(jax):
            commits["xla"] = xla
    return NightlyDay(date=day.date, versions=dict(day.versions), commits=commits, images=tuple(images))


def read_nightly_day(checkout: Path) -> NightlyDay | None:
    """The day of JAX in the locks of a checkout; None if they hold releases."""
    if not (checkout / FILE).is_file():
        return None
    return read_document(checkout / FILE, NightlyDay)


def find_lock_day(checkout: Path, flavor: str) -> NightlyDay | None:
    """The day of JAX in the lock of a flavor, which stays where the day lacks a wheel for it."""
    document, lock = read_nightly_day(checkout), checkout / f"docker/locks/jax-{flavor}.txt"
    if document is None or not keep_day(render_nightly_day(document), {"": lock.read_text(encoding="utf-8")}):
        return None
    return document


def render_nightly_day(document: NightlyDay) -> str:
    return document.model_dump_json(indent=1) + "\n"


def keep_day(document: str, locks: Mapping[str, str]) -> str:
    """The document if the locks still hold its day; else an empty text.

    Args:
        document: text of `docker/locks/nightly.json`; empty if there is none.
    """
    if not document:
        return ""
    pin = f"jax=={json.loads(document)['versions']['jax']} "
    if any(line.startswith(pin) for text in locks.values() for line in text.splitlines()):
        return document
    return ""


def render_labels(document: NightlyDay | None) -> Mapping[str, str]:
    """Variables of the bake file for the labels and the date of the images; empty values for releases."""
    if document is None:
        return dict.fromkeys(("JAX_DAY", "JAX_EPOCH", "JAX_COMMIT", "XLA_COMMIT"), "")
    commits = {f"{name.upper()}_COMMIT": document.commits.get(name, "") for name in ("jax", "xla")}
    start = datetime.fromisoformat(document.date).replace(tzinfo=UTC)
    return {"JAX_DAY": document.date, "JAX_EPOCH": str(int(start.timestamp())), **commits}
