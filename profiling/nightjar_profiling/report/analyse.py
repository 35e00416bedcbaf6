"""The profile of a capture: device time by attribution, user line and category.

In: tables, the test for user code and a way to read a source line. Out: a `Profile`, the content of `profile.json`. The
time of an op goes to the frame that `attribution` names. The *user line* of a stack is its innermost frame of user
code, or its innermost frame if there is none. Sums are exact integer nanoseconds: every op counts once.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import polars as pl

from nightjar_profiling.analyses.advice import Advice
from nightjar_profiling.analyses.categories import summarise_categories
from nightjar_profiling.analyses.host_time import find_busiest
from nightjar_profiling.analyses.stacks import FrameKey, Stack, user_line
from nightjar_profiling.attribution.apportion import apportion_time
from nightjar_profiling.attribution.attribute import DIRECT, INFERRED
from nightjar_profiling.capture_folder.tables import Tables

SCHEMA = "nightjar.profile/1"
MOST_MODULES, MOST_MERGED = 200, 500
HOT_LINES = 50  # as many as fit on a page


@dataclass(frozen=True, slots=True, kw_only=True)
class HotLine:
    """A Python line and its device time.

    Attributes:
        busy_ns: of the time in which the devices were busy, as `divide_moments` divides it; None: not computed.
    """

    file: str
    line: int
    function: str
    source: str | None
    self_ns: int
    fraction: float
    busy_ns: int | None = None


NO_HLO = "The trace has no HLO: its ops have no Python lines and no modules. Totals, kernels and times are complete."


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """`nightjar.profile/1` (docs/reference/capture-folder.md).

    Attributes:
        foreign: the trace is not of XLA's programs; it is whole without Python stacks.
        lowered_fraction: the share of device time in programs whose form before optimizations the capture has: for the
            others it is not known which operations XLA merged.
        advice: the largest saving first, with the user line of its evidence.
        busy_time_ns: in which at least one op ran, summed over the devices: less than the device time if ops ran side
            by side. None: not computed, since the capture has more ops than a page shows.
        modules: rows of `tabulate_modules`, each module before those inside it; the first MOST_MODULES.
    """

    backend: str
    command: tuple[str, ...]
    steps: tuple[int, int] | None
    device_time_ns: int
    direct_fraction: float
    inferred_fraction: float
    unattributed_fraction: float
    user_fraction: float
    library_fraction: float
    uncertain_fraction: float
    impossible_fraction: float | None
    hot_lines: tuple[HotLine, ...]
    categories: dict[str, int]
    flamegraph: str | None
    warnings: tuple[str, ...]
    foreign: bool = False
    lowered_fraction: float = 0.0
    merged_lines: tuple[dict[str, Any], ...] = ()
    modules: tuple[dict[str, Any], ...] = ()
    advice: tuple[dict[str, Any], ...] = ()
    host: dict[str, Any] | None = None
    busy_time_ns: int | None = None

    def document(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **asdict(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTime:
    """Device time by attribution method, by frame and by category, in nanoseconds.

    Attributes:
        uncertain_ns: by how much the ends of ops may be off, summed.
        busy_by_frame: the time in which the devices were busy, by frame; None: not computed.
    """

    total_ns: int
    uncertain_ns: int
    by_how: Mapping[str, int]
    by_frame: Mapping[FrameKey, int]
    by_category: Mapping[str, int]
    busy_ns: int | None = None
    busy_by_frame: Mapping[FrameKey, int] | None = None

    def fraction(self, part_ns: int) -> float:
        """The fraction of the total; 0 if the total is 0."""
        if self.total_ns:
            return part_ns / self.total_ns
        return 0.0


def sum_by_frame(shares: pl.DataFrame) -> dict[FrameKey, int]:
    """Sums the shares of `apportion_time` by frame."""
    frames = shares.filter(pl.col("frame_id").is_not_null()).group_by("program_id", "frame_id")
    return {(p, f): ns for p, f, ns in frames.agg(pl.col("duration_ns").sum()).iter_rows()}


def sum_device_time(tables: Tables, timed: Tables | None = None) -> DeviceTime:
    """Sums the durations of the ops; an op of an unknown instruction counts as unattributed."""
    shares = apportion_time(tables, by=())
    busy_ns, busy_by_frame = None, None
    if timed is not None:
        busy_ns = int(timed.ops["busy_ns"].sum())
        busy_by_frame = sum_by_frame(apportion_time(timed, by=(), time="busy_ns"))
    return DeviceTime(
        total_ns=tables.device_time_ns,
        uncertain_ns=int(tables.ops["uncertain_ns"].sum()),
        by_how=dict(shares.group_by("how").agg(pl.col("duration_ns").sum()).iter_rows()),
        by_frame=sum_by_frame(shares),
        by_category=dict(summarise_categories(tables).select("category", "device_ns").iter_rows()),
        busy_ns=busy_ns,
        busy_by_frame=busy_by_frame,
    )


def find_hot_lines(
    time: DeviceTime,
    stack_of: Callable[[FrameKey], Stack],
    source_of: Callable[[str, int], str | None],
) -> list[HotLine]:
    """The user lines, largest first."""
    lines: Counter[tuple[str, int]] = Counter()
    busy: Counter[tuple[str, int]] = Counter()
    functions: dict[tuple[str, int], Counter[str]] = defaultdict(Counter)
    for key, ns in time.by_frame.items():
        if stack := stack_of(key):
            frame = user_line(stack)
            lines[frame.file, frame.line] += ns
            busy[frame.file, frame.line] += (time.busy_by_frame or {}).get(key, 0)
            functions[frame.file, frame.line][frame.function] += ns
    return [
        HotLine(
            file=file,
            line=line,
            function=functions[file, line].most_common(1)[0][0],
            source=source_of(file, line),
            self_ns=ns,
            fraction=time.fraction(ns),
            busy_ns=None if time.busy_by_frame is None else busy[file, line],
        )
        for (file, line), ns in sorted(lines.items(), key=lambda item: (-item[1], item[0]))
    ]


def find_merged_lines(tables: Tables, stack_of: Callable[[FrameKey], Stack]) -> Iterator[dict[str, Any]]:
    """Lines with operations that XLA computes once, on another line or together with others of the same line.

    Yields:
        `file`, `line`, `operations` (their number), and `kept_file`, `kept_line`: the line with their time.
    """
    stacks = ["program_id", "kept_frame_id", "frame_id"]
    largest = tables.merged_operations.group_by(stacks).agg(pl.col("operations").max())
    lines: Counter[tuple[str, int, str, int]] = Counter()
    for program, kept_frame, frame, count in largest.iter_rows():
        stack, kept_stack = stack_of((program, frame)), stack_of((program, kept_frame))
        if stack and kept_stack:
            line, kept = user_line(stack), user_line(kept_stack)
            lines[line.file, line.line, kept.file, kept.line] += count
    for (file, line_number, kept_file, kept_line), count in sorted(lines.items()):
        yield {
            "file": file,
            "line": line_number,
            "operations": count,
            "kept_file": kept_file,
            "kept_line": kept_line,
        }


def measure_lowered(tables: Tables) -> float:
    """The share of the device time in programs whose form before optimizations is known."""
    known = tables.programs.filter(pl.col("lowered"))["program_id"].implode()
    return int(tables.ops.filter(pl.col("program_id").is_in(known))["duration_ns"].sum()) / max(
        tables.device_time_ns, 1
    )


def place_advice(
    advice: Iterable[Advice],
    tables: Tables,
    stack_of: Callable[[FrameKey], Stack],
    host: Mapping[str, Any] | None = None,
) -> Iterator[dict[str, Any]]:
    """Advice as rows, with file, line and function of a user line; null if there is none.

    The line is the instruction's, or if the devices wait for the host, the one in which the host was longest without
    waiting for them; `host` as `tabulate_host_time` gives it.
    """
    busiest = find_busiest(host) if host else None
    frames = tables.attribution.sort("root_weight").select("program_id", "instruction", "frame_id")
    frame_of = {(program, name): frame for program, name, frame in frames.iter_rows() if frame is not None}
    for row in advice:
        if row.instruction is not None:
            frame = frame_of.get((row.program_id, row.instruction))
        else:
            frame = None
        if row.program_id is not None and frame is not None:
            stack = stack_of((row.program_id, frame))
        else:
            stack = ()
        line = user_line(stack) if stack else None
        place = {name: getattr(line, name, None) for name in ("file", "line", "function")}
        if row.kind == "host" and busiest is not None:
            place = {name: busiest[name] for name in place}
        yield {**asdict(row), **place}


def divide_time(
    time: DeviceTime, stack_of: Callable[[FrameKey], Stack], impossible_ns: int | None = None
) -> dict[str, Any]:
    """The fields of a `Profile` that device time fills; `impossible_ns` is None if it was not measured."""
    direct_ns = sum(time.by_how.get(how, 0) for how in DIRECT)
    inferred_ns = sum(time.by_how.get(how, 0) for how in INFERRED)
    user_ns = sum(ns for key, ns in time.by_frame.items() if any(frame.user for frame in stack_of(key)))
    return {
        "device_time_ns": time.total_ns,
        "direct_fraction": time.fraction(direct_ns),
        "inferred_fraction": time.fraction(inferred_ns),
        "unattributed_fraction": time.fraction(time.total_ns - direct_ns - inferred_ns),
        "user_fraction": time.fraction(user_ns),
        "library_fraction": time.fraction(direct_ns + inferred_ns - user_ns),
        "uncertain_fraction": time.fraction(time.uncertain_ns),
        "impossible_fraction": None if impossible_ns is None else time.fraction(impossible_ns),
        "categories": dict(sorted(time.by_category.items(), key=lambda item: (-item[1], item[0]))),
        "busy_time_ns": time.busy_ns,
    }
