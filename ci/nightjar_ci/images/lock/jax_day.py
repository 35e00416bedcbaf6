"""The day of JAX's nightly wheels that the locks hold: `docker/locks/nightly.json`.

In: a checkout, the index of nightly wheels, and a date or none. Out: the day, served to uv as an index; and a document
with its date, versions and commits, which becomes labels of the images. Locks of releases have no such document.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from nightjar_ci.formats.documents import read_document
from nightjar_ci.jax_nightly.commits import find_jax_commit, find_xla_commit
from nightjar_ci.jax_nightly.days import Day

FILE = "docker/locks/nightly.json"


class NightlyDay(BaseModel):
    """The day of JAX in the locks.

    Attributes:
        commits: `jax` and `xla`, as far as they are known.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    date: str
    versions: dict[str, str]
    commits: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedDay:
    """A day that uv can lock.

    Attributes:
        options, variables: as uv needs them to find it.
        python: the oldest Python on which it replaces releases.
        document: the text of `docker/locks/nightly.json`.
    """

    day: Day
    options: tuple[str, ...]
    variables: Mapping[str, str]
    python: str
    document: str

    @property
    def pins(self) -> tuple[str, ...]:
        return self.day.pin(self.python)


def read_image_pythons(checkout: Path) -> tuple[str, ...]:
    """The Python versions of the images, oldest first, from `docker/versions.json`."""
    pins = json.loads((checkout / "docker/versions.json").read_text(encoding="utf-8"))
    pythons = list(pins["variable"]["GROUND_FLOORS"]["default"])
    return tuple(sorted(pythons, key=lambda python: [int(part) for part in python.split(".")]))


def describe_day(day: Day) -> NightlyDay:
    """The document of a day, with the commits that can be found."""
    commits: dict[str, str] = {}
    if jax := find_jax_commit(day):
        commits["jax"] = jax
        if xla := find_xla_commit(jax):
            commits["xla"] = xla
    return NightlyDay(date=day.date, versions=dict(day.versions), commits=commits)


def read_nightly_day(checkout: Path) -> NightlyDay | None:
    """The day of JAX in the locks of a checkout; None if they hold releases."""
    if not (checkout / FILE).is_file():
        return None
    return read_document(checkout / FILE, NightlyDay)


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
