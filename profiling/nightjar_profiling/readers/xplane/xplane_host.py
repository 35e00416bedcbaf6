"""Launches, annotations and steps of the host planes.

In: the host planes of a trace, decoded once. Out: the launches by correlation id, and the tables `ranges` and `steps`.
`xplane_thunks` reads the thunks of XLA:CPU.

Source: openxla/xla:third_party/tsl/tsl/profiler/utils/xplane_schema.cc
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl
from numpy.typing import NDArray

from nightjar_profiling.bytes.wire import Positions
from nightjar_profiling.capture_folder.tables import fill_table
from nightjar_profiling.readers.annotations.nesting import find_parents
from nightjar_profiling.readers.xplane.xplane_events import Events
from nightjar_profiling.readers.xplane.xplane_planes import Line, Plane
from nightjar_profiling.readers.xplane.xplane_values import (
    Integers,
    Texts,
    integers_of,
    look_up,
    numbers_in,
    texts_of,
    unknown,
)

STATS = (
    *("hlo_op", "program_id", "run_id", "device_ordinal", "_p", "_c"),
    *("correlation_id", "memcpy_details", "Memset_details", "step_num"),
)
COPIED_BYTES = re.compile(r"\b(?:size|num_bytes):(\d+)")
# Internal events of the profiler and the runtime: Python frames, queued tasks, ends of tasks.
RUN = re.compile(r"(?:\[\d+\] )?GpuExecutable::ExecuteThunks$")
GRAPH_LAUNCH = re.compile(r"(?:cu|cuda|hip)GraphLaunch")
NO_ANNOTATION = re.compile(r"\$|end: |ThreadpoolListener::|ThunkExecutor::")


@dataclass(frozen=True, kw_only=True)
class Decoded:
    """A plane with decoded events of some of its lines."""

    plane: Plane
    lines: tuple[Line, ...]
    events: Events
    line: Positions  # index in `lines` of each event

    @cached_property
    def start_ns(self) -> Positions:
        """The start of each event."""
        zero_ns = np.array([line.timestamp_ns for line in self.lines] or [0], np.int64)
        start_ns: Positions = self.events.offset_ps // 1000
        start_ns += zero_ns[0] if len(zero_ns) == 1 else zero_ns[self.line]
        return start_ns

    @cached_property
    def start_ps(self) -> Positions:
        """When each event began, in picoseconds after the earliest timestamp of the plane's lines."""
        zero_ns = np.array([line.timestamp_ns for line in self.lines] or [0], np.int64)
        zero_ns -= min((line.timestamp_ns for line in self.plane.lines), default=0)
        start_ps: Positions = zero_ns[self.line] * 1000 + self.events.offset_ps
        return start_ps

    @cached_property
    def duration_ns(self) -> Positions:
        """How long each took: from whole nanosecond to whole nanosecond, so that sums keep the picoseconds."""
        offset_ps, duration_ps = self.events.offset_ps, self.events.duration_ps
        duration_ns: Positions = (offset_ps + duration_ps) // 1000
        duration_ns -= offset_ps // 1000
        return duration_ns

    @cached_property
    def names(self) -> Texts:
        return look_up(self.events.metadata_id, self.plane.event_names, "")

    @cached_property
    def line_names(self) -> Texts:
        """The line name of each event."""
        return Texts(codes=self.line, names=[line.name for line in self.lines])

    def has(self, stat: str) -> NDArray[np.bool_]:
        """Which events have a stat."""
        column = self.events.stats.get(stat)
        if column is None:
            return np.zeros(len(self.line), np.bool_)
        return column.kind > 0

    def integers(self, stat: str) -> Integers:
        return integers_of(self.plane, self.events, stat)

    def texts(self, stat: str) -> Texts:
        return texts_of(self.plane, self.events, stat)


def decode(plane: Plane, stats: Iterable[str], lines: Iterable[Line] | None = None) -> Decoded:
    """Decodes some lines of a plane, or all."""
    chosen = plane.lines if lines is None else tuple(lines)
    events, line = plane.decode(stats, chosen)
    return Decoded(plane=plane, lines=chosen, events=events, line=line)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launches:
    """The launching calls, by ascending correlation id."""

    correlation: Positions
    start_ns: Positions
    bytes: Integers
    is_copy: NDArray[np.bool_]
    run: Integers  # number of the program run of the call
    caller: Texts  # of a graph: the loop, conditional or call within which it was launched

    def find(self, correlation: Integers) -> tuple[Positions, NDArray[np.bool_]]:
        """The row of each op's launch, and whether there is one."""
        if not len(self.correlation):
            none = unknown(len(correlation.values))
            return none.values, none.known
        at = np.minimum(np.searchsorted(self.correlation, correlation.values), len(self.correlation) - 1)
        return at, correlation.known & (self.correlation[at] == correlation.values)

    def find_callers(self, correlation: Integers) -> Texts:
        """The caller of each op's launch; no text if there is none."""
        at, launched = self.find(correlation)
        if not launched.any():
            return Texts(codes=np.full(len(at), -1), names=self.caller.names)
        return Texts(codes=np.where(launched, self.caller.codes[at], -1), names=self.caller.names)


def read_launches(hosts: Iterable[Decoded], control: Collection[str] = ()) -> Launches:
    """Reads the launches of all host planes; of several calls with one id, the first.

    Args:
        control: the names of all instructions that call computations.
    """
    callers = sorted(control)
    parts: list[tuple[Positions, Positions, Positions, NDArray[np.bool_], NDArray[np.bool_], Positions, Positions]] = []
    first = 0
    for host in hosts:
        rows = np.flatnonzero(host.has("correlation_id"))
        if not len(rows):
            continue
        details = host.texts("memcpy_details").take(rows)
        sizes = numbers_in(details, COPIED_BYTES)
        ids = host.integers("correlation_id").values[rows]
        runs, count = _find_runs(host, rows)
        runs = np.where(runs >= 0, runs + first, -1)
        first += count
        parts.append(
            (
                ids,
                host.start_ns[rows],
                sizes.values,
                sizes.known,
                details.codes >= 0,
                runs,
                _find_callers(host, rows, callers),
            )
        )
    if not parts:
        none = np.zeros(0, np.int64)
        return Launches(
            correlation=none,
            start_ns=none,
            bytes=unknown(0),
            is_copy=none.astype(np.bool_),
            run=unknown(0),
            caller=Texts(codes=none, names=callers),
        )
    ids, begin, size, has_size, copies, run, caller = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.lexsort((begin, ids))
    order = order[np.append(True, np.diff(ids[order]) != 0)]
    sizes_of_launches = Integers(values=size[order], known=has_size[order])
    return Launches(
        correlation=ids[order],
        start_ns=begin[order],
        bytes=sizes_of_launches,
        is_copy=copies[order],
        run=Integers(values=run[order], known=run[order] >= 0),
        caller=Texts(codes=caller[order], names=callers),
    )


def _find_callers(host: Decoded, rows: Positions, callers: Sequence[str]) -> Positions:
    """The innermost of the callers around the launch of each graph, by its number; -1 elsewhere.

    The host executes the thunks of a loop within an event that has the name of the loop's instruction.
    """
    number_of = {name: number for number, name in enumerate(callers)}
    numbers = np.array([*(number_of.get(name, -1) for name in host.names.names), -1])[host.names.codes]
    caller = np.full(len(rows), -1)
    graphs = np.flatnonzero(host.names.match(GRAPH_LAUNCH)[rows])
    around = np.flatnonzero(numbers >= 0)
    both = np.concatenate([around, rows[graphs]])
    start, duration = host.start_ns[both], host.duration_ns[both]
    order = np.lexsort((-duration, start, host.line[both]))
    parents = find_parents(host.line[both][order], start[order], (start + duration)[order])
    for place, parent in zip(order.tolist(), parents.tolist(), strict=True):
        if place >= len(around) and parent >= 0:
            caller[graphs[place - len(around)]] = numbers[both[order[parent]]]
    return caller


def _find_runs(host: Decoded, rows: Positions) -> tuple[Positions, int]:
    """The program run around each call on its thread (-1: none), and an upper bound of the run numbers.

    GPU events do not name the run of their program, but the host executes the thunks of each run within one event.
    """
    around = np.flatnonzero(host.names.match(RUN))
    run_of_call = np.full(len(rows), -1)
    for line in np.unique(host.line[around]).tolist():
        runs = around[host.line[around] == line]
        runs = runs[np.argsort(host.start_ns[runs], kind="stable")]
        calls = np.flatnonzero(host.line[rows] == line)
        called = host.start_ns[rows[calls]]
        at = np.searchsorted(host.start_ns[runs], called, side="right") - 1
        inside = (at >= 0) & (called <= (host.start_ns + host.duration_ns)[runs[at]])
        run_of_call[calls] = np.where(inside, runs[at], -1)
    return run_of_call, len(host.line)


def tabulate_ranges(hosts: Iterable[Decoded], rank: int) -> dict[str, pl.DataFrame]:
    """Makes the tables `ranges` and `steps`; a parent is the innermost enclosing range of the same thread."""
    ranges, steps, first = [fill_table("ranges", 0)], [fill_table("steps", 0)], 0
    for host in hosts:
        step = host.integers("step_num")
        rows = np.flatnonzero(step.known)
        steps.append(
            fill_table(
                "steps",
                len(rows),
                rank=rank,
                step=step.values[rows],
                start_ns=host.start_ns[rows],
                duration_ns=host.duration_ns[rows],
            )
        )
        other = host.has("hlo_op") | host.has("correlation_id") | host.names.match(NO_ANNOTATION)
        rows = np.flatnonzero(~other & (host.events.duration_ps > 0))
        thread = np.array([line.line_id for line in host.lines] or [0], np.int64)[host.line[rows]]
        start, duration = host.start_ns[rows], host.duration_ns[rows]
        order = np.lexsort((-duration, start, thread))
        rows, thread, start, duration = rows[order], thread[order], start[order], duration[order]
        parent = find_parents(thread, start, start + duration)
        ranges.append(
            fill_table(
                "ranges",
                len(rows),
                rank=rank,
                thread=thread,
                domain="TraceMe",
                range_id=np.arange(first, first + len(rows)),
                parent_id=Integers(values=parent + first, known=parent >= 0).column(),
                name=host.names.take(rows).column(),
                start_ns=start,
                duration_ns=duration,
            )
        )
        first += len(rows)
    return {"ranges": pl.concat(ranges), "steps": pl.concat(steps).sort("start_ns")}
