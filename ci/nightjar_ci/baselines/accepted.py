"""Which changes of a series are known and wanted? Committed files, one for each series, that are only ever added to.

In: a folder of baselines. Out: for each series its entries; or the text of its file with one entry more. History stays
as it is: from an accepted night on the judges compare with what came after it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, Field

from nightjar_ci.errors import InputError
from nightjar_ci.formats.documents import read_document

ACCEPTED_SCHEMA = "nightjar.accepted/1"
_HEAD = "# Changes of this series that were wanted. `nightjar-ci accept` adds an entry; none is ever edited.\n"


class Entry(BaseModel):
    """One accepted change.

    Attributes:
        night: the first night of the new level.
        level: what the series measured then, or None where it is no number (compile facts).
        ended: the series is not due any more from that night on, until it is measured again.
        renamed_to: the series that goes on with its history.
        reason: why it is wanted.
        by: who says so.
        at: when, ISO 8601.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    night: str
    level: float | None = None
    unit: str | None = None
    ended: bool = False
    renamed_to: str | None = None
    reason: Annotated[str, Field(min_length=1)]
    by: str
    at: str


class Accepted(BaseModel):
    """The accepted changes of a series: `nightjar.accepted/1`."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    schema_: Annotated[Literal["nightjar.accepted/1"], Field(alias="schema")] = "nightjar.accepted/1"
    series: str
    entry: tuple[Entry, ...] = ()


def accepted_path(folder: Path, series: str) -> Path:
    """Where the accepted changes of a series are committed; whatever a file name cannot hold is percent-encoded.

    >>> accepted_path(Path("ci/baselines"), "gpt-dp1/train/loss").as_posix()
    'ci/baselines/gpt-dp1/accepted/train%2Floss.toml'
    """
    cell, _, measure = series.partition("/")
    return folder / _as_file_name(cell) / "accepted" / f"{_as_file_name(measure)}.toml"


def read_accepted(folder: Path) -> Mapping[str, tuple[Entry, ...]]:
    """The accepted changes of every series, in the order in which they were added.

    Raises:
        InputError: a file cannot be read, or is of another series than its name says.
    """
    return {
        one.series: one.entry for path in sorted(folder.glob("*/accepted/*.toml")) if (one := _read(folder, path)).entry
    }


def add_entry(folder: Path, series: str, entry: Entry) -> tuple[Path, str]:
    """The file of a series and its text with one entry more; what it holds already stays byte for byte.

    Raises:
        InputError: the file cannot be read, or the night is accepted already.
    """
    path = accepted_path(folder, series)
    before = f"{_HEAD}schema = {_as_toml(ACCEPTED_SCHEMA)}\nseries = {_as_toml(series)}\n"
    if path.exists():
        known = _read(folder, path).entry
        if any(one.night == entry.night for one in known):
            raise InputError(f"{path}: night {entry.night} is accepted already.", "name another one with --night")
        before = path.read_text(encoding="utf-8")
    values = ((name, value) for name, value in entry.model_dump().items() if value is not None and value is not False)
    lines = "".join(f"{name} = {_as_toml(value)}\n" for name, value in values)
    return path, f"{before.rstrip()}\n\n[[entry]]\n{lines}"


def _read(folder: Path, path: Path) -> Accepted:
    found = read_document(path, Accepted, ACCEPTED_SCHEMA)
    if accepted_path(folder, found.series) != path:
        raise InputError(f"{path}: series is {found.series!r}, whose file is {accepted_path(folder, found.series)}.")
    return found


def _as_file_name(text: str) -> str:
    name = quote(text, safe=" +=@,")
    return name.replace(".", "%2E") if name.startswith(".") else name


def _as_toml(value: str | float | bool) -> str:
    """A TOML value; a JSON string is one, with DEL escaped."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value) if math.isfinite(value) else str(value)
