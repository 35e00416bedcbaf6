"""The pins of a nightly image, kept next to it in the registry: `nightjar.pins/1`.

In: the locks and pins of a checkout. Out: a document attached to the image; and from a nightly image, the files that
restore its build inputs in a checkout, so that the registry and the git commit suffice to rebuild it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Literal

from pydantic import Field, ValidationError

from nightjar_ci.errors import InputError
from nightjar_ci.formats.documents import StrictModel, write_text
from nightjar_ci.images.publish.artifacts import PINS_TYPE, find_documents
from nightjar_ci.images.publish.nightly_index import NightlyImage
from nightjar_ci.web.registry import Repository

SCHEMA = "nightjar.pins/1"
_LOCKS = "docker/locks"
_PINS = "docker/versions.json"
_DAY = "docker/locks/nightly.json"
_SUFFIXES = (".txt", ".in", ".json")


class Pins(StrictModel):
    """The files, by path relative to the checkout: `nightjar.pins/1`."""

    schema_: Literal["nightjar.pins/1"] = Field(alias="schema")
    files: dict[str, str]


def read_checkout_pins(checkout: Path) -> dict[str, str]:
    """The pins of a checkout: locks, their inputs, `versions.json`, and the day of JAX if there is one."""
    paths = sorted(path for path in (checkout / _LOCKS).rglob("*") if path.suffix in _SUFFIXES and path.is_file())
    return {str(path.relative_to(checkout)): path.read_text(encoding="utf-8") for path in (checkout / _PINS, *paths)}


def render_pins(files: Mapping[str, str]) -> bytes:
    return json.dumps({"schema": SCHEMA, "files": dict(files)}, sort_keys=True, indent=1).encode()


def find_pins(night: NightlyImage) -> dict[str, str]:
    repository = Repository(night.reference.rpartition("@")[0])
    for image in night.platforms.values():
        documents = find_documents(repository, image.digest, PINS_TYPE)
        if documents:
            return _check(documents[-1], f"{night.name}-{night.date}")
    raise InputError(f"{night.name}-{night.date} has no pins in the registry.", "it was pushed by an older nightjar-ci")


def restore_pins(checkout: Path, files: Mapping[str, str]) -> tuple[str, ...]:
    """Writes pins into a checkout, each file whole or not at all; returns the changed paths.

    The day of JAX is removed if they have none.
    """
    changed = find_changes(checkout, files)
    for name in changed:
        path = checkout / name
        if name in files:
            write_text(path, files[name])
        else:
            path.unlink()
    return changed


def find_changes(checkout: Path, files: Mapping[str, str]) -> tuple[str, ...]:
    """The paths that `restore_pins` writes or removes."""
    paths = {name: checkout / name for name in files}
    changed = [
        name for name, path in paths.items() if not path.is_file() or path.read_text(encoding="utf-8") != files[name]
    ]
    if _DAY not in files and (checkout / _DAY).is_file():
        changed.append(_DAY)
    return tuple(changed)


def _check(document: bytes, name: str) -> dict[str, str]:
    try:
        files = Pins.model_validate_json(document).files
    except ValidationError as error:
        raise InputError(f"the pins of {name} are not valid: {str(error).splitlines()[0]}.") from None
    for path in files:
        parts = PurePosixPath(path).parts
        if path != _PINS and (parts[:2] != ("docker", "locks") or ".." in parts or not path.endswith(_SUFFIXES)):
            raise InputError(f"the pins of {name} name {path!r}; expected {_PINS} or a file of {_LOCKS}.")
    return files
