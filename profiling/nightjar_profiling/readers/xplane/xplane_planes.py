"""The planes and lines of a profiler trace, and the positions of their events.

In: an XSpace file. Out: a `Space`: its planes with their lines and names. The events of a plane are only located here;
`Plane.decode` decodes them with the stats that the caller wants. The file is mapped, not copied: allocating fresh
memory for it would take more time than all the work done with it.

Source: openxla/xla:third_party/tsl/tsl/profiler/protobuf/xplane.proto
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from google.protobuf.message import DecodeError

from nightjar_profiling.bytes.wire import (
    DELIMITED,
    VARINT,
    Bytes,
    Positions,
    WireError,
    find_run,
    read_fields,
    read_varint,
)
from nightjar_profiling.errors import InputError
from nightjar_profiling.protos import xplane_pb2
from nightjar_profiling.readers.raw import keep_freed_memory
from nightjar_profiling.readers.xplane.xplane_events import Events, decode_events

PLANE, ERRORS, WARNINGS = 1, 2, 3  # fields of an XSpace
LINE = 3  # field of an XPlane
EVENT, EVENT_TAG = 4, 0x22  # field of an XLine, and its tag
DAMAGED = "the file is truncated or is something else: capture again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A stream or a thread; its events are `first` to `first + count` of the plane's."""

    line_id: int
    name: str
    timestamp_ns: int
    first: int
    count: int


@dataclass(frozen=True, kw_only=True)
class Plane:
    """A device or a host."""

    name: str
    lines: tuple[Line, ...]
    meta: xplane_pb2.XPlane  # without lines
    data: Bytes
    starts: Positions
    ends: Positions

    @cached_property
    def event_names(self) -> dict[int, str]:
        """Names of the event metadata, by id."""
        return {number: text_of(metadata.name) for number, metadata in self.meta.event_metadata.items()}

    @cached_property
    def stat_names(self) -> dict[int, str]:
        """Names of the stat metadata, by id; also the texts that stats refer to."""
        return {number: text_of(metadata.name) for number, metadata in self.meta.stat_metadata.items()}

    def decode(self, stats: Iterable[str], lines: Iterable[Line] | None = None) -> tuple[Events, Positions]:
        """Decodes the events of some lines (of all if None), with these stats.

        Returns:
            The events, and of each the position of its line in `lines`.
        """
        wanted = set(stats)
        chosen = list(self.lines if lines is None else lines)
        spans = [slice(line.first, line.first + line.count) for line in chosen]
        starts, ends = (_join([bounds[span] for span in spans]) for bounds in (self.starts, self.ends))
        numbers = np.repeat(np.arange(len(chosen)), [line.count for line in chosen])
        ids = {number: name for number, name in self.stat_names.items() if name in wanted}
        return decode_events(self.data, starts, ends, ids), numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """A trace; `notes` are the profiler's own errors."""

    planes: tuple[Plane, ...]
    notes: tuple[str, ...]


def read_space(path: Path) -> Space:
    """Maps a `*.xplane.pb` file and finds its planes."""
    keep_freed_memory()
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            mapped: mmap.mmap | bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}.") from None
    try:
        space = _read_space(mapped)
    except (WireError, DecodeError) as error:
        raise InputError(f"{path}: not an XSpace protobuf: {error}.", DAMAGED) from None
    if not space.planes:
        hint = "the file is empty or something else: was the program killed, or the disk full?"
        raise InputError(f"{path}: holds no plane ({size} bytes), expected a profiler's trace.", hint)
    return space


def text_of(data: bytes) -> str:
    """Text as a profiler writes it, which may be cut inside a character."""
    return data.decode("utf-8", errors="replace")


def _read_space(mapped: mmap.mmap | bytes) -> Space:
    view, data = memoryview(mapped), np.frombuffer(mapped, np.uint8)
    planes, notes = [], []
    for number, wire, start, end in read_fields(view, 0, len(view)):
        if number == PLANE and wire == DELIMITED:
            planes.append(_read_plane(view, data, start, end))
        elif number in (ERRORS, WARNINGS) and wire == DELIMITED:
            notes.append(text_of(bytes(view[start:end])))
    return Space(planes=tuple(planes), notes=tuple(notes))


def _read_plane(view: memoryview, data: Bytes, start: int, end: int) -> Plane:
    lines: list[Line] = []
    runs: list[tuple[Positions, Positions]] = []
    rest: list[bytes] = []
    copied = here = start
    first = 0
    for number, wire, content, stop in read_fields(view, start, end):
        if number == LINE and wire == DELIMITED:
            rest.append(bytes(view[copied:here]))
            copied = stop
            line, line_runs = _read_line(view, data, content, stop, first)
            lines.append(line)
            runs += line_runs
            first += line.count
        here = stop
    rest.append(bytes(view[copied:end]))
    meta = xplane_pb2.XPlane()
    meta.ParseFromString(b"".join(rest))
    return Plane(
        name=text_of(meta.name),
        lines=tuple(lines),
        meta=meta,
        data=data,
        starts=_join([part for part, _ in runs]),
        ends=_join([part for _, part in runs]),
    )


def _join(parts: list[Positions]) -> Positions:
    if len(parts) == 1:
        return parts[0]
    return np.concatenate([np.empty(0, np.int64), *parts])


def _read_line(
    view: memoryview, data: Bytes, start: int, end: int, first: int
) -> tuple[Line, list[tuple[Positions, Positions]]]:
    numbers, name, runs = {1: 0, 3: 0}, "", []
    while start < end:
        if view[start] == EVENT_TAG:
            starts, ends, start = find_run(data, start, end, EVENT_TAG)
            runs.append((starts, ends))
            continue
        number, wire, content, stop = next(read_fields(view, start, end))
        if number in numbers and wire == VARINT:
            value = read_varint(view, content, stop)[0]
            numbers[number] = value - (1 << 64) if value >> 63 else value
        elif number == 2 and wire == DELIMITED:
            name = text_of(bytes(view[content:stop]))
        elif number == EVENT:
            raise WireError(f"byte {start} begins an event of wire type {wire}")
        start = stop
    count = sum(len(starts) for starts, _ in runs)
    return Line(line_id=numbers[1], name=name, timestamp_ns=numbers[3], first=first, count=count), runs
