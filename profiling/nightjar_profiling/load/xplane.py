"""Which kernels and thunks ran, when, for how long, and which compiled programs did they belong to?

In: an XSpace protobuf, as `jax.profiler` writes it (`*.xplane.pb`). Out: a `Trace`: rows of `ops` and `executions`, and
the programs whose HLO the trace embeds.

On a GPU an op is an event of a `Stream #n` line of a `/device:GPU:n` plane; the launches on the host plane are not
counted. On a CPU an op is a thunk event of `/host:CPU`, on whichever thread. A thunk that runs on after its event has
ended (asynchronous) ends where the event `end: <op>` begins whose `_c` is the thunk's `_p`. A thunk that contains
others (while, call, conditional) is left out, so that no time counts twice.

Source: openxla/xla:third_party/tsl/tsl/profiler/protobuf/xplane.proto, xla/backends/cpu/runtime/thunk_executor.cc
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from nightjar_profiling.errors import InputError
from nightjar_profiling.load.hlo import Program, read_program
from nightjar_profiling.protos import xplane_pb2

DEVICE_PLANE = re.compile(r"/device:GPU:(\d+)")
PROGRAM_EVENT = re.compile(r".*\((\d+)\)")
Stats = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One run of a kernel or thunk; `run_id` ties together what one launch of a program ran."""

    rank: int
    device: int
    program_id: int | None
    run_id: int | None
    instruction: str | None
    stream: str
    kernel: str
    start_ns: int
    duration_ns: int

    @property
    def end_ns(self) -> int:
        """When it ended."""
        return self.start_ns + self.duration_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What one or more raw traces hold."""

    ops: tuple[Op, ...]
    programs: dict[int, Program]
    warnings: tuple[str, ...]


def read_trace(path: Path, rank: int = 0) -> Trace:
    """Reads a `*.xplane.pb` file.

    Raises:
        InputError: missing, empty, truncated, or not an XSpace.
    """
    space = xplane_pb2.XSpace()
    try:
        space.ParseFromString(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}.") from None
    except DecodeError as error:
        hint = "the file is truncated or is something else: capture again"
        raise InputError(f"{path}: not an XSpace protobuf: {error}.", hint) from None
    if not space.planes:
        hint = "the file is empty or something else: was the program killed, or the disk full?"
        raise InputError(f"{path}: holds no plane ({path.stat().st_size} bytes), expected a profiler's trace.", hint)
    programs = {program.program_id: program for program in _read_programs(space, path)}
    ops = [op for plane in space.planes for op in _read_device(plane, rank)]
    if not ops:
        ops = [op for plane in space.planes if plane.name == "/host:CPU" for op in _read_thunks(plane, rank)]
        ops = drop_containers(ops, programs)
    warnings = [f"{path.name}: the profiler says: {text}" for text in (*space.errors, *space.warnings)]
    return Trace(ops=tuple(ops), programs=programs, warnings=(*warnings, *_missing(path, ops, programs)))


def merge_traces(traces: Iterable[Trace]) -> Trace:
    """One trace of several ranks; a program of another rank that has a taken id but differs gets a free id."""
    programs: dict[int, Program] = {}
    ops: list[Op] = []
    warnings: list[str] = []
    for trace in traces:
        moved: dict[int, int] = {}
        for number, program in trace.programs.items():
            taken = programs.get(number)
            if taken is not None and taken.fingerprint != program.fingerprint:
                moved[number] = max(*programs, *trace.programs) + 1
                program = replace(program, program_id=moved[number])
            programs.setdefault(program.program_id, program)
        ops += [
            replace(op, program_id=moved.get(op.program_id, op.program_id)) if op.program_id is not None else op
            for op in trace.ops
        ]
        warnings += trace.warnings
    return Trace(ops=tuple(ops), programs=programs, warnings=tuple(warnings))


def drop_containers(ops: Iterable[Op], programs: dict[int, Program]) -> list[Op]:
    """Leaves out the ops that contain others.

    With HLO, an op is a container when an instruction of a computation that it calls ran as an op of its own. Without,
    when it encloses another op of the same program on the same thread.
    """
    ops = list(ops)
    ran: dict[int | None, set[str | None]] = defaultdict(set)
    for op in ops:
        ran[op.program_id].add(op.instruction)
    containers = {
        (program.program_id, name)
        for program in programs.values()
        for name in ran[program.program_id] & program.instructions.keys()
        if name is not None and not ran[program.program_id].isdisjoint(program.below(name))
    }
    enclosing = _find_enclosing([op for op in ops if op.program_id not in programs])
    return [op for op in ops if (op.program_id, op.instruction) not in containers and id(op) not in enclosing]


def op_rows(ops: Iterable[Op]) -> dict[str, list[dict[str, Any]]]:
    """The rows of ops in the tables `ops` and `executions`; an execution is what shares a run id on a device."""
    runs: dict[tuple[int, int, int], dict[int, int]] = defaultdict(dict)
    spans: dict[tuple[int, int, int, int], tuple[int, int]] = {}
    rows = []
    for op in sorted(ops, key=lambda op: (op.rank, op.device, op.start_ns)):
        execution = None
        if op.program_id is not None and op.run_id is not None:
            numbers = runs[op.rank, op.device, op.program_id]
            execution = numbers.setdefault(op.run_id, len(numbers))
            key = (op.rank, op.device, op.program_id, execution)
            start_ns, end_ns = spans.get(key, (op.start_ns, op.end_ns))
            spans[key] = (start_ns, max(end_ns, op.end_ns))
        rows.append(
            {
                "rank": op.rank,
                "device": op.device,
                "program_id": op.program_id,
                "execution": execution,
                "instruction": op.instruction,
                "stream": op.stream,
                "kernel": op.kernel,
                "start_ns": op.start_ns,
                "duration_ns": op.duration_ns,
            }
        )
    names = ("rank", "device", "program_id", "execution")
    executions = [
        {**dict(zip(names, key, strict=True)), "start_ns": start_ns, "duration_ns": end_ns - start_ns}
        for key, (start_ns, end_ns) in spans.items()
    ]
    return {"ops": rows, "executions": executions}


def _read_programs(space: xplane_pb2.XSpace, path: Path) -> Iterator[Program]:
    for plane in space.planes:
        if plane.name != "/host:metadata":
            continue
        for event in plane.event_metadata.values():
            found = PROGRAM_EVENT.fullmatch(event.name)
            proto = next(
                (s.bytes_value for s in event.stats if plane.stat_metadata[s.metadata_id].name == "Hlo Proto"), b""
            )
            if found is not None and proto:
                yield read_program(proto, int(found[1]), f"{path}: HLO of {event.name}")


def _read_device(plane: xplane_pb2.XPlane, rank: int) -> Iterator[Op]:
    found = DEVICE_PLANE.fullmatch(plane.name)
    if found is None:
        return
    for line in plane.lines:
        if line.name.startswith("Stream #"):
            for event, stats in _events(plane, line):
                yield _op(plane, line, event, stats, rank, int(found[1]))


def _read_thunks(plane: xplane_pb2.XPlane, rank: int) -> Iterator[Op]:
    thunks: list[tuple[Op, int | None]] = []
    ends: dict[int, int] = {}
    for line in plane.lines:
        for event, stats in _events(plane, line):
            if "hlo_op" in stats:
                op = _op(plane, line, event, stats, rank, int(stats.get("device_ordinal", 0)))
                thunks.append((op, stats.get("_p")))
            elif "_c" in stats and plane.event_metadata[event.metadata_id].name.startswith("end: "):
                ends[stats["_c"]] = line.timestamp_ns + event.offset_ps // 1000
    for op, produced in thunks:
        end_ns = ends.get(produced, 0) if produced is not None else 0
        yield replace(op, duration_ns=end_ns - op.start_ns) if end_ns > op.end_ns else op


def _events(plane: xplane_pb2.XPlane, line: xplane_pb2.XLine) -> Iterator[tuple[xplane_pb2.XEvent, Stats]]:
    """The events of a line with their stats by name."""
    names = {number: stat.name for number, stat in plane.stat_metadata.items()}
    for event in line.events:
        stats = {}
        for stat in event.stats:
            kind = stat.WhichOneof("value")
            value = names.get(stat.ref_value, "") if kind == "ref_value" else kind and getattr(stat, kind)
            stats[names.get(stat.metadata_id, "")] = value
        yield event, stats


def _op(
    plane: xplane_pb2.XPlane,
    line: xplane_pb2.XLine,
    event: xplane_pb2.XEvent,
    stats: Stats,
    rank: int,
    device: int,
) -> Op:
    known = "hlo_op" in stats and "program_id" in stats
    run_id = stats.get("run_id")
    return Op(
        rank=rank,
        device=device,
        program_id=int(stats["program_id"]) if known else None,
        run_id=None if run_id is None else int(run_id),
        instruction=str(stats["hlo_op"]) if known else None,
        stream=line.name,
        kernel=plane.event_metadata[event.metadata_id].name,
        start_ns=line.timestamp_ns + event.offset_ps // 1000,
        duration_ns=event.duration_ps // 1000,
    )


def _find_enclosing(ops: list[Op]) -> set[int]:
    """Ids (of the objects) of the ops that enclose another of the same program on the same thread."""
    found: set[int] = set()
    threads: dict[tuple[int | None, str], list[Op]] = defaultdict(list)
    for op in ops:
        threads[op.program_id, op.stream].append(op)
    for thread in threads.values():
        open_ops: list[Op] = []
        for op in sorted(thread, key=lambda one: (one.start_ns, -one.duration_ns)):
            while open_ops and open_ops[-1].end_ns < op.end_ns:
                open_ops.pop()
            if open_ops:
                found.add(id(open_ops[-1]))
            open_ops.append(op)
    return found


def _missing(path: Path, ops: list[Op], programs: dict[int, Program]) -> list[str]:
    unknown = {op.program_id for op in ops if op.program_id is not None} - programs.keys()
    if not unknown:
        return []
    ns = sum(op.duration_ns for op in ops if op.program_id in unknown)
    return [
        f"{path.name}: no HLO for {len(unknown)} of the programs that ran ({ns / 1e6:.3f} ms): "
        "their ops cannot be attributed to Python."
    ]
