"""The same answer the slow way: a trace read with protobuf, event by event, to compare the columnar reader with.

It shares nothing with the reader but the declaration of the messages.
"""

from __future__ import annotations

import re
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
    """The stats of an event by name, references resolved."""
    names = {number: stat.name.decode(errors="replace") for number, stat in plane.stat_metadata.items()}
    stats: dict[str, Any] = {}
    for stat in event.stats:
        kind = stat.WhichOneof("value")
        if kind is not None:
            value = names.get(stat.ref_value) if kind == "ref_value" else getattr(stat, kind)
            stats[names.get(stat.metadata_id, "")] = value.decode(errors="replace") if type(value) is bytes else value
    return stats


def _thunks(plane: xplane_pb2.XPlane) -> list[Row]:
    rows, ends = [], {}
    for line in plane.lines:
        for event in line.events:
            stats = stats_of(plane, event)
            if "hlo_op" in stats:
                rows.append((_row(plane, line, event, int(stats.get("device_ordinal", 0))), stats.get("_p")))
            elif "_c" in stats and plane.event_metadata[event.metadata_id].name.startswith(b"end: "):
                ends[stats["_c"]] = line.timestamp_ns + event.offset_ps // 1000
    return [(*row[:6], max(row[6], ends.get(produced, 0) - row[5])) for row, produced in rows]


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
