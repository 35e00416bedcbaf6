"""Device memory of a step, and the values in memory at its peak with their Python lines.

In: a `Module` with the compiler's buffer assignment. Out: the bytes that a step reserves, and the values in memory at
its peak, largest first. Temporary values share one allocation; the compiler's trace of it records when each is
allocated and freed, which gives the ones at the peak. An argument has no line but a name.

Source: openxla/xla, xla/service/hlo.proto (BufferAssignmentProto, HeapSimulatorTrace)
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType
from typing import Any

from nightjar_models.measuring.hlo import count_elements
from nightjar_models.program.kernels import ATTENTION, kernel_kind
from nightjar_models.program.lines import Lines
from nightjar_models.program.module import Module

TEMP = "temp"
HOST = 5  # the color of an allocation in the host's memory: xla/layout.h, Layout::kHostMemorySpace
INFERRED = ", inferred"
_ARGUMENT = re.compile(r"(?P<node>\w+)\.states\[0\]\[(?P<number>\d+)\]")
_KEYWORD = re.compile(r"arrays\['(?P<name>[^']+)'\]")  # of a function that is lowered inside of another
_FREED, _SHARED = 1, 2  # HeapSimulatorTrace.Event.Kind; 0 allocates


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """A value in memory at the peak.

    Attributes:
        instruction: that produces it.
        kind: argument, constant, output or temp.
        line: the Python line; if the compiler recorded none, a neighbouring value's, followed by `INFERRED`.
        op_name: JAX's name of the operation with its scopes; of an argument its own, such as
            `state.optimizer[1][0].nu[layers.mlp.up]`.
    """

    instruction: str
    kind: str
    bytes: int
    line: str
    op_name: str


def reserved_bytes(module: Module) -> int:
    """Bytes that a step reserves on each device: arguments, results that reuse no argument's buffer, temporary values.

    Includes a device's workspace for cuDNN's attention (`missing_workspace`).
    """
    assigned: int = sum(
        allocation.size
        for allocation in module.proto.buffer_assignment.buffer_allocations
        if not allocation.is_thread_local and allocation.color != HOST
    )
    return assigned + missing_workspace(module)


def missing_workspace(module: Module) -> int:
    """Bytes by which the peak is higher on a device, because cuDNN reports the workspace of its attention.

    Ahead of time that workspace has 0 bytes. It counts only as far as it raises an attention above the peak.
    """
    workspaces = {item.id: size for item, _ in module.executed() if (size := attention_workspace(item))}
    if not workspaces:
        return 0
    assignment = module.proto.buffer_assignment
    sizes = {item.id: item.size for item in assignment.logical_buffers}
    maker = {item.id: item.defined_at.instruction_id for item in assignment.logical_buffers}
    more = 0
    for traces in find_traces(assignment).values():
        for trace in traces:
            total = peak = raised = 0
            for event, (_, change) in zip(trace.events, _replay(trace.events, sizes), strict=True):
                total += change
                peak = max(peak, total)
                if event.kind != _FREED:
                    raised = max(raised, total + workspaces.get(maker.get(event.buffer_id, -1), 0))
            more = max(more, raised - peak)
    return more


def attention_workspace(instruction: Any) -> int:
    """Bytes of workspace that the backward pass of cuDNN's attention needs and that its shape lacks, else 0.

    It holds the queries' gradient in float32, one number for each row of scores, and 256 bytes (H100, cuDNN 9.19).
    """
    parts = list(instruction.shape.tuple_shapes)
    if kernel_kind(instruction) != f"{ATTENTION} backward" or not parts or count_elements(parts[-1]):
        return 0
    rows: int = math.prod(parts[0].dimensions[:-1])
    return 4 * (count_elements(parts[0]) + rows) + 256


def top_buffers(module: Module, count: int, names: Mapping[str, Sequence[str]] = MappingProxyType({})) -> list[Buffer]:
    """The largest values that are in memory at the peak, largest first.

    Args:
        count: maximum number of persistent and of temporary values each.
        names: of the variables of each argument of the step, in their order.
    """
    assignment = module.proto.buffer_assignment
    buffers = {one.id: one for one in assignment.logical_buffers}
    traces = find_traces(assignment)
    live: list[tuple[int, int, str]] = []
    for one in assignment.buffer_allocations:
        if one.is_thread_local or one.color == HOST:
            continue
        kind = _kind(one)
        if kind == TEMP and one.index in traces:
            live += [(size, number, kind) for number, size in _live(traces[one.index], buffers).items()]
        elif one.assigned:  # used by one value, or by several in turn
            largest = max(one.assigned, key=lambda part: (part.size, -part.logical_buffer_id))
            live.append((min(largest.size, one.size), largest.logical_buffer_id, kind))
    live.sort(key=lambda row: (-row[0], row[1]))
    groups = ([row for row in live if (row[2] == TEMP) is temp][:count] for temp in (False, True))
    named, lines = {one.name: one for one in module.instructions.values()}, Lines(module)
    rows = []
    for size, number, kind in sorted((row for group in groups for row in group), key=lambda row: (-row[0], row[1])):
        place = buffers[number].defined_at
        instruction = module.instructions.get(place.instruction_id) or named.get(place.instruction_name)
        line, inferred = (None, False) if instruction is None else lines.find(instruction)
        rows.append(
            Buffer(
                instruction=instruction.name if instruction is not None else "",
                kind=kind,
                bytes=size,
                line="" if line is None else f"{line}{INFERRED if inferred else ''}",
                op_name="" if instruction is None else name_parameter(instruction.metadata.op_name, names),
            )
        )
    return rows


def name_parameter(op_name: str, names: Mapping[str, Sequence[str]]) -> str:
    """A variable's name in place of the number that `nnx.jit` gives it.

    >>> name_parameter("optimizer.states[0][1]", {"model": ["embedding"], "optimizer": ["count", "mu.embedding"]})
    'optimizer.mu.embedding'
    """
    if (keyword := _KEYWORD.fullmatch(op_name)) is not None:
        return keyword["name"]
    match = _ARGUMENT.fullmatch(op_name)
    if match is None:
        return op_name
    variables, number = names.get(match["node"], ()), int(match["number"])
    if number < len(variables):
        return f"{match['node']}.{variables[number]}"
    return op_name


def find_traces(assignment: Any) -> dict[int, list[Any]]:
    """The traces of each allocation, by its index.

    A trace names its allocation by the index at that time; the compiler merges and renumbers allocations afterwards. So
    the allocation is looked up by the values in the trace.
    """
    holders = {
        part.logical_buffer_id: allocation.index
        for allocation in assignment.buffer_allocations
        for part in allocation.assigned
    }
    traces: dict[int, list[Any]] = {}
    for trace in assignment.heap_simulator_traces:
        holder = next((holders[event.buffer_id] for event in trace.events if event.buffer_id in holders), None)
        if holder is not None:
            traces.setdefault(holder, []).append(trace)
    return traces


def _live(traces: Sequence[Any], buffers: Mapping[int, Any]) -> dict[int, int]:
    """The values at the peak of each trace; each trace has its own part of the allocation."""
    sizes = {number: buffer.size for number, buffer in buffers.items()}
    return {number: size for trace in traces for number, size in live_at_peak(trace.events, sizes).items()}


def live_at_peak(events: Sequence[Any], sizes: Mapping[int, int]) -> dict[int, int]:
    """Values and their bytes at the first peak of a trace; replays it twice."""
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
    """For each event the value whose memory was allocated or freed, and the change in bytes."""
    owner: dict[int, int] = {}  # value to the value whose memory it shares
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
            change = 0
            if users[number] == 1:
                change = sizes.get(number, 0)
        yield number, change


def _kind(allocation: Any) -> str:
    if allocation.is_entry_computation_parameter:
        return "argument"
    if allocation.is_constant:
        return "constant"
    if allocation.maybe_live_out:
        return "output"
    return TEMP
