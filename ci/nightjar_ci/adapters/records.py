"""Records of a text file: a log read by a pattern, JSON lines, CSV, and trainers' own logs.

In: a file. Out: records, each with its file and line, for error messages.

Source: transformers/trainer_callback.py (TrainerState.log_history); mlcommons/logging, mllog (lines `:::MLLOG {...}`).
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nightjar_ci.errors import InputError
from nightjar_ci.untrusted.files import MOST_DATA_BYTES as MOST_BYTES
from nightjar_ci.untrusted.files import read_after_left_out, read_untrusted
from nightjar_ci.untrusted.pattern_search import SEARCH_S, SlowPatternError, match_lines

DELIMITERS = ",;\t|"
_MARK = ":::MLLOG"
_STEPS = ("step_num", "samples_count", "epoch_num", "epoch_count", "current_epoch_num")


class CutFileError(InputError):
    """A file that ends in the middle of a record."""


class Repeated:
    """The value of a column whose name the header has more than once."""

    def __repr__(self) -> str:
        return "ambiguous, as the header has the name more than once"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Values that a program wrote together.

    Attributes:
        source: `FILE:LINE`.
        fields: name -> value; nested names are joined with dots.
    """

    source: str
    fields: Mapping[str, Any]


def read_file(path: Path, left_in: Path | None = None) -> bytes:
    """The content of a program's file.

    Args:
        left_in: folder of the job that wrote it, opened as untrusted; None if the user names the file.
    """
    try:
        if left_in is None:
            return path.read_bytes()
        return read_untrusted(left_in, path.relative_to(left_in), MOST_BYTES)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}.") from None


def read_log(path: Path, pattern: str, *, left_in: Path | None = None, search_s: float = SEARCH_S) -> Iterator[Record]:
    """The lines that a pattern matches, anywhere in the line."""
    try:
        matches = match_lines(pattern, _read_text(path, left_in), search_s)
    except SlowPatternError as error:
        raise InputError(f"{path}: {error.message}", error.hint) from None
    for number, groups in matches:
        source = f"{path}:{number}"
        fields: dict[str, Any] = {**groups}
        if "json" in fields:
            fields |= parse_object(source, fields.pop("json"))
        yield Record(source=source, fields=fields)


def read_json(path: Path, *, left_in: Path | None = None) -> Iterator[Record]:
    """A file that holds one JSON object, or a list of objects; inside of them, lists are fields by number."""
    document = parse_json(path, left_in)
    entries = document if isinstance(document, list) else [document]
    for number, entry in enumerate(entries):
        source = f"{path}[{number}]" if entries is document else str(path)
        if not isinstance(entry, dict):
            raise InputError(f"{source}: expected a JSON object, found {type(entry).__name__}.")
        yield Record(source=source, fields=flatten(entry))


def read_json_lines(path: Path, *, left_in: Path | None = None) -> Iterator[Record]:
    for number, line in read_lines(path, left_in):
        if line.strip():
            source = f"{path}:{number}"
            yield Record(source=source, fields=parse_object(source, line))


def read_csv(path: Path, *, left_in: Path | None = None, delimiter: str | None = None) -> Iterator[Record]:
    """The rows below a header line.

    Args:
        left_in: folder of the job that wrote it; None if the user names the file.
        delimiter: between two cells; if None, the one of `DELIMITERS` that is most frequent in the header.
    """
    lines = [line for _, line in read_lines(path, left_in)]
    if delimiter is None:
        header = re.sub(r'"[^"]*"', "", next(filter(None, lines), ""))
        delimiter = max(DELIMITERS, key=header.count)
    rows = csv.reader(lines, strict=True, delimiter=delimiter)
    names: list[str] | None = None
    repeated: dict[str, Repeated] = {}
    try:
        for row in rows:
            if not row:
                continue
            if names is None:
                names = [name.strip() for name in row]
                repeated = {name: Repeated() for name, times in Counter(names).items() if name and times > 1}
                continue
            if len(row) != len(names):
                raise InputError(
                    f"{path}:{rows.line_num}: {len(row)} cells, expected {len(names)} ({', '.join(names)})."
                )
            cells = ((name, cell.strip()) for name, cell in zip(names, row, strict=True))
            fields = {name: cell for name, cell in cells if name and cell}
            yield Record(source=f"{path}:{rows.line_num}", fields=fields | repeated)
    except csv.Error as error:
        raise InputError(f"{path}:{rows.line_num}: not valid CSV: {error}.") from None
    if names is None:
        raise InputError(f"{path}: empty, expected a header line and rows.")


def flatten(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flattens a nested object; names, and the numbers of objects in a list, are joined with dots.

    >>> flatten({"step": 3, "metrics": {"train/loss": 5.1}, "runs": [{"s": 2.0}]})
    {'step': 3, 'metrics.train/loss': 5.1, 'runs.0.s': 2.0}
    """
    flat: dict[str, Any] = {}
    for name, inner in value.items():
        if isinstance(inner, list) and any(isinstance(item, Mapping | list) for item in inner):
            inner = dict(enumerate(inner))
        if isinstance(inner, Mapping):
            flat |= flatten(inner, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = inner
    return flat


def read_object(path: Path, left_in: Path | None = None) -> dict[str, Any]:
    document = parse_json(path, left_in)
    if not isinstance(document, dict):
        raise InputError(f"{path}: expected a JSON object, found {type(document).__name__}.")
    return document


def parse_json(path: Path, left_in: Path | None = None) -> Any:
    try:
        return json.loads(_read_text(path, left_in))
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", 1)
        raise InputError(f"{path}:{line}: not valid JSON: {error}.") from None


def parse_object(source: str, text: str) -> dict[str, Any]:
    """The fields of a JSON object in a line, flattened."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        hint = None
        if "Unterminated" in str(error):
            hint = "check whether the writer was killed or the disk is full"
        raise InputError(f"{source}: not valid JSON: {error}, found {_short(text)}.", hint) from None
    if not isinstance(value, dict):
        raise InputError(f"{source}: expected a JSON object, found {_short(text)}.")
    return flatten(value)


def read_lines(path: Path, left_in: Path | None = None) -> Iterator[tuple[int, str]]:
    """The lines of a file with their numbers from 1, without their ends."""
    for number, line in enumerate(io.StringIO(_read_text(path, left_in), newline="\n"), start=1):
        yield number, line.rstrip("\r\n")


def _read_text(path: Path, left_in: Path | None) -> str:
    text, left_out = read_after_left_out(read_file(path, left_in).decode("utf-8-sig", errors="replace"))
    if left_out:
        hint = "write the records to a separate file in {out}: a long stdout.log keeps only its head and tail"
        raise InputError(f"{path}: {left_out:,} bytes were left out, so records are missing.", hint)
    return text


def _short(text: str) -> str:
    if len(text) > 80:
        text = text[:77] + "..."
    return repr(text)


def read_trainer_state(path: Path, *, left_in: Path | None = None) -> Iterator[Record]:
    """The entries of `log_history`."""
    history = read_object(path, left_in).get("log_history")
    if not isinstance(history, list):
        raise InputError(f"{path}: it has no list 'log_history'.", "pass checkpoint-*/trainer_state.json")
    for number, entry in enumerate(history):
        source = f"{path}: log_history[{number}]"
        if not isinstance(entry, dict):
            raise InputError(f"{source}: expected an object, found {type(entry).__name__}.")
        yield Record(source=source, fields=flatten(entry))


def read_mlperf(path: Path, *, left_in: Path | None = None) -> Iterator[Record]:
    """The lines of MLPerf's logger; a line's value is the field that its key names, its metadata are fields as well.

    The step is the first of `step_num`, `samples_count` and `epoch_num` in the metadata.
    """
    for number, line in read_lines(path, left_in):
        _, mark, text = line.partition(_MARK)
        if not mark:
            continue
        source = f"{path}:{number}"
        entry = parse_object(source, text)
        fields = {
            name.partition("metadata.")[2]: value for name, value in entry.items() if name.startswith("metadata.")
        }
        fields |= {name: entry[name] for name in ("event_type", "time_ms") if name in entry}
        step = next((fields[name] for name in _STEPS if name in fields), None)
        if step is not None:
            fields.setdefault("step", step)
        if isinstance(entry.get("key"), str):
            fields[entry["key"]] = entry.get("value")
        yield Record(source=source, fields=fields)
