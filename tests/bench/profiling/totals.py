"""Are device times those of JAX's own reader, `jax.profiler.ProfileData`? On every XPlane trace of a device at hand.

The golden H100 traces, and what the folder of real data holds. Asynchronous ops of a TPU, and control flow, which
contains other ops, are left out on both sides. `ProfileData` cuts every duration to whole nanoseconds, ours keep the
picoseconds in the sum: the goal holds where ops last a microsecond on average.
"""

from __future__ import annotations

import lzma
import re
import tempfile
from pathlib import Path

import polars as pl

from nightjar_profiling.readers.xplane.xplane import read_raw
from tests.bench.table import Row
from tests.places import SHARED_DATA, TESTS

CONTROL = re.compile(r" (?:while|conditional|call)\(")
GOLDEN = TESTS / "profiling" / "readers" / "golden" / "h100"
TRACES = (*sorted((SHARED_DATA / "xplane").glob("*.xplane.pb")), *sorted(GOLDEN.glob("*.xplane.pb.xz")))
GOAL = 0.1  # percent


def list_goals() -> list[str]:
    """The names of this part's goals."""
    return [f"{trace.name}: device time, off by" for trace in TRACES]


def measure() -> list[Row]:
    """The largest difference of a device's total, by trace."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for trace in TRACES:
            path = unpack(trace, Path(folder))
            ours, theirs = sum_ours(path), sum_jax(path)
            worst = max(abs(ours.get(device, 0) / ns - 1) for device, ns in theirs.items())
            rows.append(
                Row(
                    name=f"{trace.name}: device time, off by",
                    ours=100 * worst if ours.keys() == theirs.keys() else float("nan"),
                    goal=GOAL,
                    unit="%",
                )
            )
    return rows


def unpack(trace: Path, folder: Path) -> Path:
    """The trace, plain."""
    if trace.suffix != ".xz":
        return trace
    path = folder / trace.stem
    path.write_bytes(lzma.decompress(trace.read_bytes()))
    return path


def sum_ours(path: Path) -> dict[int, float]:
    """Device time in ns, by device."""
    return dict(read_raw(path).tables["ops"].group_by("device").agg(pl.col("duration_ns").sum()).iter_rows())


def sum_jax(path: Path) -> dict[int, float]:
    """The same, event by event, as JAX reads them."""
    from jax.profiler import ProfileData

    totals: dict[int, float] = {}
    for plane in ProfileData.from_file(str(path)).planes:
        device = re.fullmatch(r"/device:(?:GPU|TPU):(\d+)", plane.name)
        lines = [line for line in plane.lines if device and re.match(r"Stream #|XLA Ops$", line.name or "")]
        events = [event for line in lines for event in line.events if not CONTROL.search(event.name)]
        if device and events:
            totals[int(device[1])] = sum(event.duration_ns for event in events)
    return totals
