"""The result file of a run, `result.json` (schema `nightjar.run/1`), written atomically.

In: a run's measures and its environment. Out: the file. Numbers that are not finite are written as strings, since JSON
has none.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nightjar_models.errors import InputError, OutputError

SCHEMA = "nightjar.run/1"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Values by step."""

    name: str
    unit: str
    better: str
    steps: list[int]
    values: list[float]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Repeated measurements of one quantity; the first `warmup` do not count."""

    name: str
    unit: str
    better: str
    values: list[float]
    warmup: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The trainer's measures."""

    status: str
    config: dict[str, Any]
    curves: list[Curve]
    samples: list[Sample]
    facts: list[dict[str, Any]]


def dump(document: Any) -> str:
    """JSON text, with `"NaN"`, `"Infinity"` and `"-Infinity"` for numbers that JSON cannot express.

    >>> dump({"values": [1.5, float("nan"), float("-inf")]})
    '{"values": [1.5, "NaN", "-Infinity"]}'
    """
    return json.dumps(_spell(document), allow_nan=False)


def _spell(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _spell(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_spell(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return json.dumps(value)  # the names that Python's JSON has for them
    return value


class ResultFile:
    """The `result.json` of a run, which begins when this is made.

    Args:
        out: its folder, which is made, and checked to be writable before any work is spent.

    Raises:
        InputError: no folder was given.
        OutputError: it is not a folder, read-only, or the disk is full.
    """

    def __init__(self, out: Path | None) -> None:
        if out is None:
            raise InputError("no output folder: expected --out or NIGHTJAR_OUT.", "add --out FOLDER")
        try:
            out.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=out) as file:
                file.write(b"0")
        except OSError as error:
            raise _cannot_write(out, error) from None
        self.folder, self.path = out, out / "result.json"
        self._begin = time.monotonic()
        self._started_at = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")

    def render(
        self, run: Run, environment: Mapping[str, Any], *, job: str, workload: str, seed: int = 0
    ) -> dict[str, Any]:
        """The document of a run that ends now: its subject, then its measures."""
        return {
            "schema": SCHEMA,
            "job": job,
            "workload": workload,
            "seed": seed,
            "started_at": self._started_at,
            "duration_s": time.monotonic() - self._begin,
            "environment": environment,
            **dataclasses.asdict(run),
        }

    def write(self, document: Mapping[str, Any]) -> None:
        write_file(self.path, (dump(document) + "\n").encode())


def write_file(path: Path, data: bytes) -> None:
    """Writes a file of a result through a temporary neighbour and a rename.

    Raises:
        OutputError: the disk is full or the folder cannot be written; an earlier file stays as it was.
    """
    name = ""
    try:
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except OSError as error:
        if name:
            Path(name).unlink(missing_ok=True)
        raise _cannot_write(path, error) from None


def _cannot_write(path: Path, error: OSError) -> OutputError:
    reason = error.strerror or str(error)
    return OutputError(f"{path}: cannot be written: {reason}.", "free some space, or name another folder with --out")
