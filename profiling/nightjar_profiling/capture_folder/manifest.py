"""The manifest of a capture folder, `manifest.json`: the captured run and its tools.

In: a capture folder (docs/reference/capture-folder.md). Out: its `Manifest`.
"""

from __future__ import annotations

import dataclasses
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from nightjar_profiling.capture_folder.documents import expect, read_json, write_json
from nightjar_profiling.capture_folder.ranks import find_rank_folders
from nightjar_profiling.errors import InputError

SCHEMA = "nightjar.capture/1"
NOT_MEASURED = "estimate, nothing ran"
MARK = ".nightjar-unfinished"  # lies in a capture folder while it is being made: leftovers of a kill can be made again


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One capture.

    Attributes:
        backend: which profiler wrote the raw files; `estimate` if none did and nothing ran.
        command: the program and its arguments; empty if only a raw trace was given.
        exit_code: of the program; minus the signal's number if one ended it; 1 if an exception ended the loop inside
            `capture_steps`; None if unknown.
        steps: first and last traced step, or None for the whole run.
        environment: of the traced program: working folder, versions, devices, variables that matter.
        raw: raw files, relative to the folder.
        sources: files of `sources/`, under the names that the metadata gives them.
        user_code: patterns of further user code (see `usercode.py`).
        warnings: missing or doubtful data.
    """

    backend: Literal["jax", "nsys", "estimate"]
    command: tuple[str, ...] = ()
    exit_code: int | None = None
    steps: tuple[int, int] | None = None
    environment: dict[str, Any] = field(default_factory=dict)
    raw: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    user_code: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def mark_times(backend: str) -> str:
    """The note on a time that is an estimate; empty if it was measured."""
    if backend == "estimate":
        return NOT_MEASURED
    return ""


def read_manifest(folder: Path) -> Manifest:
    """Reads the manifest of a capture folder."""
    check_finished(folder)
    path = folder / "manifest.json"
    data = read_json(path, SCHEMA)
    field_names = {one.name for one in dataclasses.fields(Manifest)}
    for key in sorted(field_names ^ (data.keys() - {"schema"})):
        raise InputError(f"{path}: {'this key is missing' if key in field_names else 'unknown key'}: {key!r}.")
    for key in (lists := ("command", "raw", "sources", "user_code", "warnings")):
        expect(path, key, data[key], list)
    expect(path, "environment", data["environment"], dict)
    steps = data["steps"]
    if steps is not None and (len(expect(path, "steps", steps, list)) != 2 or not all(type(n) is int for n in steps)):
        raise InputError(f"{path}: 'steps' is {steps!r}, expected two integers or null.")
    return Manifest(
        backend=data["backend"],
        exit_code=data["exit_code"],
        environment=data["environment"],
        steps=None if steps is None else (steps[0], steps[1]),
        **{key: tuple(data[key]) for key in lists},
    )


def check_finished(folder: Path) -> None:
    """Refuses an unfinished capture, and a folder with one capture per rank."""
    ranks = find_rank_folders(folder)
    if ranks:
        raise InputError(
            f"{folder}: holds a capture for each of {len(ranks)} ranks.",
            f"name one, such as {ranks[0]}, or make one of all: nightjar-profiling merge {folder} --out all",
        )
    if (folder / MARK).is_file() and not (folder / "manifest.json").is_file():
        raise InputError(f"{folder}: this capture was ended before its program was.", "capture again")


def check_writable(folder: Path) -> None:
    """Refuses an unwritable folder, before any other work."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        hint = "copy the capture to a folder that you may write to"
        raise InputError(f"{folder}: cannot be written to: {error.strerror}.", hint) from None


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Writes `manifest.json`, whole or not at all."""
    write_json(folder / "manifest.json", {"schema": SCHEMA, **dataclasses.asdict(manifest)})
