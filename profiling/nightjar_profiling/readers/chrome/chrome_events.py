"""Events of a Chrome trace.

In: a JSON file, gzipped or not: an object with `traceEvents`, or the bare list. Out: its complete events, `B` and `E`
paired to one, in the order of their start, and the names of its processes and threads. Times are whole nanoseconds.

Source: "Trace Event Format" (docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU)
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from nightjar_profiling.bytes.archive import FREE_BYTES, LARGEST_RATIO, ZIP_BOMB
from nightjar_profiling.errors import InputError

GZIP = b"\x1f\x8b"
EXPECTED = "expected trace events: an object with `traceEvents`, or a list of events"
OTHERS = {  # keys of documents that are not traces, and what writes them
    ("nodes", "schema", "start_ts"): "an execution trace of PyTorch, which holds the graph and not the times",
    ("nodes", "samples"): "a CPU profile of V8 (Chrome or Node), which holds samples",
    ("head", "samples"): "a CPU profile of V8 (Chrome or Node), which holds samples",
    ("profiles", "shared"): "a profile of speedscope, which holds samples",
    ("frames", "markers"): "a profile of Firefox, which holds samples",
    ("recording", "version"): "a recording of Safari",
    ("frames", "mode", "samples"): "a profile of stackprof (Ruby), which holds samples",
    ("nbformat", "cells"): "a Jupyter notebook",
}
HINT = "export the trace again, or copy the file again: it may be cut off"

Lane = tuple[str, str]
"""Process and thread, as the trace names them."""


class Event(NamedTuple):
    """Something that lasted. A tuple, as a trace holds a million of them."""

    lane: Lane
    name: str
    category: str
    start_ns: int
    duration_ns: int
    args: Mapping[str, Any]

    @property
    def end_ns(self) -> int:
        """The end."""
        return self.start_ns + self.duration_ns


START, DURATION = (itemgetter(Event._fields.index(name)) for name in ("start_ns", "duration_ns"))
MAKE = tuple.__new__  # half of the time that calling `Event` takes


@dataclass(frozen=True, slots=True, kw_only=True)
class ChromeTrace:
    """The events of a trace by start, the longer first; names of processes and of lanes."""

    events: list[Event]
    processes: Mapping[str, str]
    threads: Mapping[Lane, str]
    facts: Mapping[str, Any]


def collect_events(path: Path, document: Any) -> ChromeTrace:
    """The events of a document.

    Raises:
        InputError: it is JSON of another kind.
    """
    if isinstance(document, list):
        rows, facts = document, {}
    elif isinstance(document, dict) and isinstance(document.get("traceEvents"), list):
        rows, facts = document["traceEvents"], {key: value for key, value in document.items() if key != "traceEvents"}
    else:
        raise InputError(f"{path}: {_describe(document)}: {EXPECTED}.", "is it a trace?")
    try:
        return _collect(rows, facts)
    except KeyError as error:
        raise InputError(f"{path}: not a valid list of trace events: one lacks {error}.", HINT) from None
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise InputError(f"{path}: not a valid list of trace events: {error}.", HINT) from None


def load_json(path: Path) -> Any:
    """The document in a file, gzipped or not; a list may lack its end, as that of a program that was stopped does.

    Raises:
        InputError: missing, cut off, or not JSON.
    """
    try:
        data = path.read_bytes()
        if data.startswith(GZIP):
            data = _unpack(path, data)
        try:
            return json.loads(data)
        except ValueError:
            if not data.lstrip().startswith(b"["):
                raise
            return json.loads(data.rstrip().removesuffix(b",") + b"]")
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}.", HINT) from None
    except (EOFError, zlib.error) as error:
        raise InputError(f"{path}: gzip data is damaged: {error}.", HINT) from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not valid JSON: {error}.", HINT) from None


def _unpack(path: Path, data: bytes) -> bytes:
    """The contents of gzip data, within the limit that archives have."""
    most_bytes = FREE_BYTES + LARGEST_RATIO * len(data)
    with gzip.open(io.BytesIO(data)) as file:
        contents = file.read(most_bytes + 1)
    if len(contents) > most_bytes:
        raise InputError(f"{path}: its gzip data holds more than {LARGEST_RATIO} times its size.", ZIP_BOMB)
    return contents


def _describe(document: Any) -> str:
    if isinstance(document, dict):
        for keys, what in OTHERS.items():
            if document.keys() >= set(keys):
                return what
        return f"JSON with the keys {', '.join(map(repr, list(document)[:5])) or 'none'}"
    return f"JSON of type {type(document).__name__}"


def _collect(rows: Iterable[Any], facts: Mapping[str, Any]) -> ChromeTrace:
    events: list[Event] = []
    processes: dict[str, str] = {}
    threads: dict[Lane, str] = {}
    lanes: dict[tuple[Any, Any], Lane] = {}
    open_events: dict[Lane, list[dict[str, Any]]] = {}
    for row in rows:
        if not isinstance(row, dict):
            continue
        get = row.get
        phase, numbers = get("ph"), (get("pid", 0), get("tid", 0))
        lane = lanes.get(numbers)
        if lane is None:
            lane = lanes[numbers] = str(numbers[0]), str(numbers[1])
        if phase == "X":
            events.append(_make_event(row, lane, row["ts"], get("dur", 0), get("args")))
        elif phase == "B":
            open_events.setdefault(lane, []).append(row)
        elif phase == "E" and open_events.get(lane):
            begin = open_events[lane].pop()
            args = {**(begin.get("args") or {}), **(get("args") or {})}
            duration_us = read_number(row["ts"]) - read_number(begin["ts"])
            events.append(_make_event(begin, lane, begin["ts"], duration_us, args))
        elif phase == "M" and get("name") == "process_name":
            processes[lane[0]] = str((get("args") or {}).get("name", ""))
        elif phase == "M" and get("name") == "thread_name":
            threads[lane] = str((get("args") or {}).get("name", ""))
    events.sort(key=DURATION, reverse=True)  # twice by a number is faster than once by a pair
    events.sort(key=START)
    return ChromeTrace(events=events, processes=processes, threads=threads, facts=facts)


def _make_event(row: dict[str, Any], lane: Lane, start_us: Any, duration_us: Any, args: Any) -> Event:
    if isinstance(start_us, str) or isinstance(duration_us, str):
        start_us, duration_us = read_number(start_us), read_number(duration_us)
    duration_ns = round(duration_us * 1000)
    get = row.get
    return MAKE(
        Event,
        (
            lane,
            str(get("name", "unnamed")),
            str(get("cat", "")),
            round(start_us * 1000),
            duration_ns if duration_ns > 0 else 0,
            args if isinstance(args, dict) else {},
        ),
    )


def read_number(value: Any) -> float:
    """A time; some tools write it as text.

    >>> read_number(2), read_number("2.5")
    (2, 2.5)
    """
    if isinstance(value, str):
        return float(value)
    number: float = value
    return number
