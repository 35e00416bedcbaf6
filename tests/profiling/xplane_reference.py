"""The same answer the slow way: a trace read with protobuf, event by event, to compare the columnar reader with.

It shares nothing with the reader but the declaration of the messages.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nightjar_profiling.protos import xplane_pb2

Row = tuple[int, int | None, str | None, str, str, int, int]
"""Device, program id, instruction, line, kernel, start and duration in ns."""


def read_ops(path: Path) -> list[Row]:
    """All kernels of a GPU trace, or all thunks of a CPU trace (containers too), by device and start."""
    space = xplane_pb2.XSpace()
    space.ParseFromString(path.read_bytes())
    rows: list[Row] = []
    for plane in space.planes:
        found = re.fullmatch(r"/device:GPU:(\d+)", plane.name.decode())
        for line in plane.lines if found else ():
            if line.name.startswith(b"Stream #"):
                rows += [_row(plane, line, event, int(found[1])) for event in line.events if found]
    if rows:
        return sorted(rows, key=lambda row: (row[0], row[5]))
    for plane in space.planes:
        if plane.name == b"/host:CPU":
            rows += _thunks(plane)
    return sorted(rows, key=lambda row: (row[0], row[5]))


def stats_of(plane: xplane_pb2.XPlane, event: xplane_pb2.XEvent) -> dict[str, Any]:
    names = {number: stat.name.decode(errors="replace") for number, stat in plane.stat_metadata.items()}
    stats: dict[str, Any] = {}
    for stat in event.stats:
        kind = stat.WhichOneof("value")
        if kind is not None:
            value = names.get(stat.ref_value) if kind == "ref_value" else getattr(stat, kind)
            stats[names.get(stat.metadata_id, "")] = value.decode(errors="replace") if type(value) is bytes else value
    return stats


def _thunks(plane: xplane_pb2.XPlane) -> list[Row]:
    """The thunks; one whose `end:` event follows others, in what is around that event, ended where those began."""
    rows: dict[Any, Row] = {}
    ends: dict[Any, _End] = {}
    for line in plane.lines:
        around = [_Around(None)]
        for event in sorted(line.events, key=lambda one: (one.offset_ps // 1000, -one.duration_ps)):
            name, stats = plane.event_metadata[event.metadata_id].name, stats_of(plane, event)
            now = line.timestamp_ns + event.offset_ps // 1000
            while (until := around[-1].until_ns) is not None and until <= now:
                around.pop()
            if name.startswith(b"ThreadpoolListener::StartRegion"):
                around = [around[0], _Around(None)]
            elif name.startswith(b"ThreadpoolListener::StopRegion"):
                around = [around[0]]
            elif "hlo_op" in stats or name == b"ThunkExecutor::Execute":
                around[-1].begun_ns.append(now)
                around.append(_Around(now + event.duration_ps // 1000))
                if "hlo_op" in stats:
                    key = stats.get("_p", -len(rows))
                    rows[key] = _row(plane, line, event, int(stats.get("device_ordinal", 0)))
            elif "_c" in stats and name.startswith(b"end: "):
                ends[stats["_c"]] = _End(line.name.decode(), now, around[-1].begun_ns, len(around) > 1)
    return [(*row[:6], ends[key].of(row) - row[5]) if key in ends else row for key, row in rows.items()]


@dataclass
class _Around:
    """A task, a thunk or a call of the executor; `until_ns` is None for a task, and for the thread itself."""

    until_ns: int | None
    begun_ns: list[int] = field(default_factory=list)  # what began directly in it


@dataclass
class _End:
    """An `end:` event: its thread and time, what began around it, and whether anything but the thread is around it."""

    thread: str
    written_ns: int
    begun_ns: list[int]
    contained: bool

    def of(self, row: Row) -> int:
        start, own_end = row[5], row[5] + row[6]
        first = next((begin for begin in self.begun_ns if start < begin < self.written_ns), None)
        if first is not None:
            return first if self.contained else own_end
        return max(own_end, self.written_ns) if self.thread == row[3] else max(start, self.written_ns)


def _row(plane: xplane_pb2.XPlane, line: xplane_pb2.XLine, event: xplane_pb2.XEvent, device: int) -> Row:
    stats = stats_of(plane, event)
    known = stats.get("hlo_op") is not None and stats.get("program_id") is not None
    return (
        device,
        int(stats["program_id"]) if known else None,
        str(stats["hlo_op"]) if known else None,
        line.name.decode(),
        plane.event_metadata[event.metadata_id].name.decode(errors="replace"),
        line.timestamp_ns + event.offset_ps // 1000,
        event.duration_ps // 1000,
    )
