"""Buffers of a program at its memory peak, and the memory of its temporary values over time.

In: an HloProto with XLA's buffer assignment. Out: one `Buffer` for each value that is live at the peak, and the total
after each allocation. Parameters,
constants and results keep their memory for the whole run. Temporary values share an allocation; the heap simulator
trace shows when each is allocated and freed, and the values at its peak are reported. The sizes sum to the allocations'
total: memory that the trace does not explain (alignment, gaps) is one buffer without an instruction.

Source: openxla/xla:xla/service/hlo.proto (BufferAssignmentProto, HeapSimulatorTrace)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from nightjar_profiling.protos import hlo_pb2

HOST = 5  # the color of an allocation in the host's memory: xla/layout.h, Layout::kHostMemorySpace

ALLOCATED, FREED, SHARED = 0, 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """A value in memory at the peak; `instruction` is None for memory that belongs to no single value."""

    instruction: str | None
    kind: Literal["parameter", "constant", "output", "temp"]
    size_bytes: int


def read_peak(proto: hlo_pb2.HloProto) -> tuple[Buffer, ...]:
    """The buffers that are live at the peak, largest first; empty without a buffer assignment."""
    assignment = proto.buffer_assignment
    names = {instruction.id: instruction.name for c in proto.hlo_module.computations for instruction in c.instructions}
    definitions = {value.id: value.defined_at for value in assignment.logical_buffers}
    sizes = {value.id: value.size for value in assignment.logical_buffers}
    traces = _find_traces(assignment)

    def name_of(number: int) -> str | None:
        if number not in definitions:
            return None
        return names.get(definitions[number].instruction_id) or definitions[number].instruction_name or None

    buffers: list[Buffer] = []
    for allocation in assignment.buffer_allocations:
        if allocation.is_thread_local or allocation.color == HOST or not allocation.size:
            continue
        kind = _kind(allocation)
        live: dict[int, int] = {}
        if kind == "temp" and allocation.index in traces:
            for trace in traces[allocation.index]:
                live |= _live_at_peak(trace.events, sizes)
        elif allocation.assigned:  # of one value, or of several in turn: the largest represents it
            largest = max(allocation.assigned, key=lambda part: part.size)
            live = {largest.logical_buffer_id: min(largest.size, allocation.size)}
        buffers += [Buffer(instruction=name_of(n), kind=kind, size_bytes=size) for n, size in live.items() if size]
        unexplained = allocation.size - sum(live.values())
        if unexplained > 0:
            buffers.append(Buffer(instruction=None, kind=kind, size_bytes=unexplained))
    return tuple(sorted(buffers, key=lambda buffer: (-buffer.size_bytes, buffer.instruction or "")))


def read_donated(proto: hlo_pb2.HloProto) -> frozenset[str]:
    """The parameters whose memory a result takes."""
    names = {instruction.id: instruction.name for c in proto.hlo_module.computations for instruction in c.instructions}
    defined = {value.id: value.defined_at.instruction_id for value in proto.buffer_assignment.logical_buffers}
    return frozenset(
        names.get(defined.get(part.logical_buffer_id, 0), "")
        for allocation in proto.buffer_assignment.buffer_allocations
        if allocation.is_entry_computation_parameter and allocation.maybe_live_out
        for part in allocation.assigned
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The memory of a program's temporary values after it allocated or freed one."""

    instruction: str | None
    live_bytes: int


def read_memory_over_time(proto: hlo_pb2.HloProto, most: int = 1000) -> list[Moment]:
    """The memory of the largest allocation of temporary values, in the order of the schedule.

    Args:
        proto: with a buffer assignment; without one there are no moments.
        most: moments to keep: of neighbours the one with the most memory, so that the peak stays.
    """
    assignment = proto.buffer_assignment
    sizes = {value.id: value.size for value in assignment.logical_buffers}
    names = {instruction.id: instruction.name for c in proto.hlo_module.computations for instruction in c.instructions}
    defined = {value.id: value.defined_at for value in assignment.logical_buffers}
    ours = [one for one in assignment.buffer_allocations if not one.is_thread_local and one.color != HOST]
    temporary = {one.index: one.size for one in ours if _kind(one) == "temp"}
    traces = {index: trace for index, trace in _find_traces(assignment).items() if index in temporary}
    if not traces:
        return []
    largest = max(traces, key=lambda index: temporary[index])
    trace = max(
        traces[largest], key=lambda part: max((total for _, total in _replay(list(part.events), sizes)), default=0)
    )
    moments = [
        Moment(instruction=names.get(defined[number].instruction_id) if number in defined else None, live_bytes=total)
        for (number, change), total in _replay(list(trace.events), sizes)
        if change
    ]
    width = -(-len(moments) // most) or 1
    return [max(moments[at : at + width], key=lambda moment: moment.live_bytes) for at in range(0, len(moments), width)]


def _find_traces(assignment: hlo_pb2.BufferAssignment) -> dict[int, list[hlo_pb2.HeapTrace]]:
    """The traces of each allocation, by its index; each covers its own part of the allocation.

    The index in a trace is outdated, since XLA merges and renumbers allocations afterwards. So a trace is matched by
    its values, which are assigned to its allocation.
    """
    allocations = {part.logical_buffer_id: a.index for a in assignment.buffer_allocations for part in a.assigned}
    traces: dict[int, list[hlo_pb2.HeapTrace]] = {}
    for trace in assignment.heap_simulator_traces:
        index = next((allocations[event.buffer_id] for event in trace.events if event.buffer_id in allocations), None)
        if index is not None:
            traces.setdefault(index, []).append(trace)
    return traces


def _kind(allocation: hlo_pb2.BufferAllocation) -> Literal["parameter", "constant", "output", "temp"]:
    if allocation.is_entry_computation_parameter:
        return "parameter"
    if allocation.is_constant:
        return "constant"
    if allocation.maybe_live_out:
        return "output"
    return "temp"


def _live_at_peak(events: Iterable[hlo_pb2.HeapTrace.Event], sizes: dict[int, int]) -> dict[int, int]:
    """Buffers and sizes when the total is first highest; replays the events twice."""
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
    """After each event: the memory allocated or freed (buffer, bytes; negative if freed), and the total."""
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
