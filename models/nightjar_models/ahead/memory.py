"""What fills the device's memory when a step needs most, and which Python lines are the largest values from?

In: a `Module` with the compiler's buffer assignment. Out: what a step reserves, and the values that lie in memory at
its peak, largest first. Temporary values share one allocation; the compiler's trace of it says when each comes and
goes, and those of its fullest moment are named.

Source: openxla/xla, xla/service/hlo.proto (BufferAssignmentProto, HeapSimulatorTrace)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from nightjar_models.ahead.module import Module

_FREED, _SHARED = 1, 2  # HeapSimulatorTrace.Event.Kind; 0 allocates


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """A value in memory at the peak.

    Attributes:
        instruction: that makes it.
        kind: argument, constant, output or temp.
        line: the Python line, or empty.
        op_name: JAX's name of the operation, with its scopes.
    """

    instruction: str
    kind: str
    bytes: int
    line: str
    op_name: str


def reserved_bytes(module: Module) -> int:
    """What a step reserves on each device: arguments, results that take no argument's place, temporary values."""
    return sum(one.size for one in module.proto.buffer_assignment.buffer_allocations if not one.is_thread_local)


def top_buffers(module: Module, count: int) -> list[Buffer]:
    """The largest values that are in memory at the peak."""
    assignment = module.proto.buffer_assignment
    buffers = {one.id: one for one in assignment.logical_buffers}
    sizes = {number: one.size for number, one in buffers.items()}
    traces: dict[int, list[Any]] = {}
    for trace in assignment.heap_simulator_traces:
        traces.setdefault(trace.buffer_allocation_index, []).extend(trace.events)
    live: list[tuple[int, int, str]] = []
    for one in assignment.buffer_allocations:
        if one.is_thread_local:
            continue
        kind = _kind(one)
        if kind == "temp" and one.index in traces:
            live += [(size, number, kind) for number, size in live_at_peak(traces[one.index], sizes).items()]
        elif one.assigned:  # one value fills it, or several one after the other
            largest = max(one.assigned, key=lambda part: (part.size, -part.logical_buffer_id))
            live.append((min(largest.size, one.size), largest.logical_buffer_id, kind))
    names = {one.name: one for one in module.instructions.values()}
    found = []
    for size, number, kind in sorted(live, key=lambda row: (-row[0], row[1]))[:count]:
        place = buffers[number].defined_at
        instruction = module.instructions.get(place.instruction_id) or names.get(place.instruction_name)
        line = None if instruction is None else module.line(instruction)
        found.append(
            Buffer(
                instruction=instruction.name if instruction is not None else "",
                kind=kind,
                bytes=size,
                line="" if line is None else str(line),
                op_name="" if instruction is None else instruction.metadata.op_name,
            )
        )
    return found


def live_at_peak(events: Sequence[Any], sizes: Mapping[int, int]) -> dict[int, int]:
    """Values and their bytes at the first moment of the highest total of a trace, which is replayed twice."""
    peak, best, total = 0, 0, 0
    for moment, (_, change) in enumerate(_replay(events, sizes), start=1):
        total += change
        if total > best:
            peak, best = moment, total
    live: dict[int, int] = {}
    for number, change in islice(_replay(events, sizes), peak):
        if change > 0:
            live[number] = change
        elif change < 0:
            live.pop(number, None)
    return live


def _replay(events: Sequence[Any], sizes: Mapping[int, int]) -> Iterator[tuple[int, int]]:
    """After each event the value whose memory came or went, and by how many bytes."""
    owner: dict[int, int] = {}  # value to the value whose memory it has
    users: dict[int, int] = {}
    for event in events:
        number, change = event.buffer_id, 0
        if event.kind == _FREED:
            if number in owner:
                number = owner.pop(number)
                users[number] -= 1
                change = 0 if users[number] else -sizes.get(number, 0)
        else:
            if event.kind == _SHARED:
                number = owner.get(event.share_with_canonical_id, event.share_with_canonical_id)
            owner[event.buffer_id] = number
            users[number] = users.get(number, 0) + 1
            change = sizes.get(number, 0) if users[number] == 1 else 0
        yield number, change


def _kind(allocation: Any) -> str:
    if allocation.is_entry_computation_parameter:
        return "argument"
    if allocation.is_constant:
        return "constant"
    return "output" if allocation.maybe_live_out else "temp"
