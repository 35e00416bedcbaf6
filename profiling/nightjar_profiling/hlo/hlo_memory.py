"""Which values of a program lie in memory when it needs most?

In: an HloProto with XLA's buffer assignment. Out: one `Buffer` for each value live at the peak. Parameters, constants
and results keep their memory for the whole run. Temporary values share an allocation; the heap simulator's trace says
when each comes and goes, and those live at its highest point are named. The sizes sum to those of the allocations:
what the trace does not explain (alignment, gaps) is one buffer of no instruction.

Source: openxla/xla:xla/service/hlo.proto (BufferAssignmentProto, HeapSimulatorTrace)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from nightjar_profiling.protos import hlo_pb2

ALLOCATED, FREED, SHARED = 0, 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """A value in memory at the peak; `instruction` is None for memory that belongs to no single value."""

    instruction: str | None
    kind: Literal["parameter", "constant", "output", "temp"]
    size_bytes: int


def read_peak(proto: hlo_pb2.HloProto) -> tuple[Buffer, ...]:
    """The buffers live at the peak, largest first; empty where the module carries no buffer assignment."""
    assignment = proto.buffer_assignment
    names = {one.id: one.name for c in proto.hlo_module.computations for one in c.instructions}
    where = {one.id: one.defined_at for one in assignment.logical_buffers}
    sizes = {one.id: one.size for one in assignment.logical_buffers}
    traces = _find_traces(assignment)

    def name_of(number: int) -> str | None:
        if number not in where:
            return None
        return names.get(where[number].instruction_id) or where[number].instruction_name or None

    found: list[Buffer] = []
    for one in assignment.buffer_allocations:
        if one.is_thread_local or not one.size:
            continue
        kind = _kind(one)
        if kind == "temp" and one.index in traces:
            live = {n: size for trace in traces[one.index] for n, size in _live_at_peak(trace.events, sizes).items()}
        else:  # one value fills it, or values one after the other: the largest stands for it
            largest = max(one.assigned, key=lambda part: part.size, default=None)
            live = {} if largest is None else {largest.logical_buffer_id: min(largest.size, one.size)}
        found += [Buffer(instruction=name_of(n), kind=kind, size_bytes=size) for n, size in live.items() if size]
        rest = one.size - sum(live.values())
        if rest > 0:
            found.append(Buffer(instruction=None, kind=kind, size_bytes=rest))
    return tuple(sorted(found, key=lambda buffer: (-buffer.size_bytes, buffer.instruction or "")))


def _find_traces(assignment: hlo_pb2.BufferAssignment) -> dict[int, list[hlo_pb2.HeapTrace]]:
    """The traces of each allocation, by its index; each is of its own part of the allocation.

    The index in a trace is that of the time when it was made: XLA merges and renumbers allocations afterwards. So a
    trace is joined by its values, which are assigned to its allocation.
    """
    holders = {part.logical_buffer_id: one.index for one in assignment.buffer_allocations for part in one.assigned}
    found: dict[int, list[hlo_pb2.HeapTrace]] = {}
    for trace in assignment.heap_simulator_traces:
        holder = next((holders[event.buffer_id] for event in trace.events if event.buffer_id in holders), None)
        if holder is not None:
            found.setdefault(holder, []).append(trace)
    return found


def _kind(one: hlo_pb2.BufferAllocation) -> Literal["parameter", "constant", "output", "temp"]:
    if one.is_entry_computation_parameter:
        return "parameter"
    if one.is_constant:
        return "constant"
    return "output" if one.maybe_live_out else "temp"


def _live_at_peak(events: Iterable[hlo_pb2.HeapTrace.Event], sizes: dict[int, int]) -> dict[int, int]:
    """Buffers and sizes at the first moment of the highest total; the events are replayed twice."""
    events = list(events)
    peak, best = 0, 0
    for moment, (_, total) in enumerate(_replay(events, sizes), start=1):
        if total > best:
            peak, best = moment, total
    live: dict[int, int] = {}
    for _, (change, _) in zip(range(peak), _replay(events, sizes), strict=False):
        number, size = change
        if size > 0:
            live[number] = size
        elif size < 0:
            live.pop(number, None)
    return live


def _replay(events: list[hlo_pb2.HeapTrace.Event], sizes: dict[int, int]) -> Iterable[tuple[tuple[int, int], int]]:
    """After each event: the memory that came or went (buffer, bytes; 0 for none), and the total."""
    holder: dict[int, int] = {}  # buffer -> the buffer whose memory it uses
    users: dict[int, int] = {}
    total = 0
    for event in events:
        number = event.buffer_id
        change = 0
        if event.kind == ALLOCATED:
            holder[number] = number
            users[number] = 1
            change = sizes.get(number, 0)
        elif event.kind == SHARED:
            owner = holder.get(event.share_with_canonical_id, event.share_with_canonical_id)
            holder[number] = owner
            if not users.get(owner):
                change, number = sizes.get(owner, 0), owner
            users[owner] = users.get(owner, 0) + 1
        elif event.kind == FREED and number in holder:
            owner = holder.pop(number)
            users[owner] -= 1
            if not users[owner]:
                change, number = -sizes.get(owner, 0), owner
        total += change
        yield (number, change), total
