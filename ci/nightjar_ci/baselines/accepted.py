"""Accepted changes of series: committed files, one per series, to which entries are only added.

In: a folder of baselines. Out: the entries of each series, or the text of its file with a new entry. Accepting does not
change the history: from the accepted night on, judges compare only with later nights.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import quote

from pydantic import Field

from nightjar_ci.errors import InputError
from nightjar_ci.formats.documents import StrictModel, read_document
from nightjar_ci.formats.series_name import parse_series_name

ACCEPTED_SCHEMA = "nightjar.accepted/1"
_LONGEST_NAME = 200  # of 255 bytes: `.toml`, a dot and the suffix of a temporary file are added
_HEAD = "# Accepted changes of this series. `nightjar-ci accept` adds entries; existing ones are never edited.\n"


class Entry(StrictModel):
    """One accepted change.

    Attributes:
        night: the first night of the new level.
        level: the new level, or None if it is not a number (compile facts).
        ended: whether the series is no longer due from that night on, until it is measured again.
        false_alarm: whether the regression of that night was none: its history goes on.
        renamed_to: the series that continues its history.
        at: when, ISO 8601.
    """

    night: str
    level: float | None = None
    unit: str | None = None
    ended: bool = False
    false_alarm: bool = False
    renamed_to: str | None = None
    reason: Annotated[str, Field(min_length=1)]
    by: str
    at: str


class Accepted(StrictModel):
    """The accepted changes of a series: `nightjar.accepted/1`."""

    schema_: Annotated[Literal["nightjar.accepted/1"], Field(alias="schema")] = "nightjar.accepted/1"
    series: str
    entry: tuple[Entry, ...] = ()


def accepted_path(folder: Path, series: str) -> Path:
    """The file of a series' accepted changes; characters that a file name cannot contain are percent-encoded.

    >>> accepted_path(Path("ci/baselines"), "gpt-dp1/train/loss").as_posix()
    'ci/baselines/gpt-dp1/accepted/train%2Floss.toml'
    """
    cell, measure = parse_series_name(series)
    return folder / _as_file_name(cell) / "accepted" / f"{_as_file_name(measure)}.toml"


def read_accepted(folder: Path) -> Mapping[str, tuple[Entry, ...]]:
    files = [_read(folder, path) for path in sorted(folder.glob("*/accepted/*.toml"))]
    return {accepted.series: accepted.entry for accepted in files if accepted.entry}


def add_entry(folder: Path, series: str, entry: Entry) -> tuple[Path, str]:
    """The file of a series and its text with a new entry; the existing text is kept byte for byte."""
    path = accepted_path(folder, series)
    text = f"{_HEAD}schema = {_as_toml(ACCEPTED_SCHEMA)}\nseries = {_as_toml(series)}\n"
    if path.exists():
        if any(existing.night == entry.night for existing in _read(folder, path).entry):
            raise InputError(f"{path}: night {entry.night} is already accepted.", "name another night with --night")
        text = path.read_text(encoding="utf-8")
    values = ((name, value) for name, value in entry.model_dump().items() if value is not None and value is not False)
    lines = "".join(f"{name} = {_as_toml(value)}\n" for name, value in values)
    return path, f"{text.rstrip()}\n\n[[entry]]\n{lines}"


def _read(folder: Path, path: Path) -> Accepted:
    accepted = read_document(path, Accepted, ACCEPTED_SCHEMA)
    expected = accepted_path(folder, accepted.series)
    if expected != path:
        raise InputError(f"{path}: series is {accepted.series!r}, which belongs in {expected}.")
    return accepted


def _as_file_name(text: str) -> str:
    """The text with percent signs; one too long for a file system, as of a test with many parameters, is cut."""
    name = quote(text, safe=" +=@,")
    if len(name) > _LONGEST_NAME:
        name = f"{name[: _LONGEST_NAME - 13]}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    if name.startswith("."):
        return name.replace(".", "%2E")
    return name


def _as_toml(value: str | float | bool) -> str:
    """A TOML value; a JSON string is valid TOML once DEL is escaped."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if math.isfinite(value):
        return repr(value)
    return str(value)
