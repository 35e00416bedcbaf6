"""Which instructions has a compiled program, how do they depend on each other, and which Python stack has each?

In: a serialized HloProto. Out: a `Program`, plain data. Traces embed the module as it was
after all optimizations. The link to Python is `metadata.stack_frame_id`, or, where the compiler wrote only one line for
each instruction (older XLA, other frontends), `source_file` and `source_line`: a stack of one frame.

Source: openxla/xla:xla/service/hlo.proto, openxla/xla:xla/xla_data.proto
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from google.protobuf.message import DecodeError

from nightjar_profiling.errors import InputError
from nightjar_profiling.hlo.hlo_cost import Cost, count_costs
from nightjar_profiling.hlo.hlo_groups import name_devices, read_group_size, read_groups
from nightjar_profiling.hlo.hlo_memory import Buffer, read_peak
from nightjar_profiling.hlo.shapes import count_bytes, count_elements, on_host
from nightjar_profiling.protos import hlo_pb2

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One HLO instruction; operands and called computations are given by name.

    Attributes:
        kind: of a fusion: kLoop, kInput, kOutput, kCustom; else empty.
        elements: of the result.
        bytes: of the result.
        flops: floating point operations, as `hlo_cost` counts them; None where they cannot be known.
        transcendentals: evaluations of exp, tanh and the like, which `flops` leaves out.
        bytes_accessed: read and written; None where it cannot be known.
        on_host: the result lies in the memory of the host.
        group_size: devices in a group of a collective; None where the instruction does not say, or is none.
        groups: of a collective that runs in several side by side, the ids of their devices; empty where not known.
        channel_id: of a collective; None where it has none.
        scheduling_name: the name before scheduling, by which XLA looks up measured latencies; empty where not recorded.
        parameter_number: of a parameter, the operand of the caller that it receives.
        layout: of the result, to be compared; empty of a tuple.
        target: what a custom call calls.
    """

    name: str
    opcode: str
    kind: str
    computation: str
    op_name: str
    frame_id: int | None
    bytes: int
    operands: tuple[str, ...]
    called: tuple[str, ...]
    elements: int = 0
    flops: float | None = None
    transcendentals: float = 0.0
    bytes_accessed: int | None = None
    on_host: bool = False
    group_size: int | None = None
    groups: tuple[tuple[int, ...], ...] = ()
    channel_id: int | None = None
    scheduling_name: str = ""
    parameter_number: int = 0
    layout: str = ""
    target: str = ""

    @property
    def category(self) -> str:
        """The opcode; of a fusion `fusion:<kind>`."""
        return f"{self.opcode}:{self.kind}" if self.kind else self.opcode


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One Python stack frame; `parent_id` is its caller."""

    frame_id: int
    parent_id: int | None
    file: str
    line: int
    function: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One compiled HLO module.

    Attributes:
        instructions: by name, which is unique in a module.
        computations: names of the instructions of each computation, operands before users.
        roots: name of the root instruction of each computation.
        frames: by id.
        buffers: live at the peak of memory; empty where XLA's buffer assignment is not recorded.
        schedule: names of the instructions of each computation, in the order in which they run; empty where not known.
    """

    program_id: int
    name: str
    fingerprint: str
    instructions: dict[str, Instruction]
    computations: dict[str, tuple[str, ...]]
    roots: dict[str, str]
    frames: dict[int, Frame]
    buffers: tuple[Buffer, ...] = ()
    schedule: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def below(self, instruction: str) -> Iterator[str]:
        """All instructions of the computations that an instruction calls, at any depth."""
        waiting, seen = list(self.instructions[instruction].called), set[str]()
        while waiting:
            computation = waiting.pop()
            if computation in seen:
                continue
            seen.add(computation)
            for name in self.computations[computation]:
                yield name
                waiting.extend(self.instructions[name].called)


def read_program(data: bytes, program_id: int, where: str) -> Program:
    """Decodes a serialized HloProto.

    Args:
        data: the protobuf.
        program_id: under which the trace knows the program.
        where: of the bytes, for error messages.

    Raises:
        InputError: the bytes are no HloProto, or refer to what they do not hold.
    """
    proto = hlo_pb2.HloProto()
    try:
        proto.ParseFromString(data)
    except DecodeError as error:
        raise InputError(f"{where}: not an HLO protobuf: {error}.") from None
    module = proto.hlo_module
    names = {one.id: one.name for computation in module.computations for one in computation.instructions}
    called = {computation.id: computation.name for computation in module.computations}
    frames = _read_frames(module.stack_frame_index, where)
    lines = _add_lines(module, frames)
    costs = count_costs(module)
    try:
        instructions = {
            one.name: _read_instruction(
                one,
                computation.name,
                names,
                called,
                _frame_of(one, frames, lines),
                costs[one.id],
                module.device_assignment,
            )
            for computation in module.computations
            for one in computation.instructions
        }
        roots = {computation.name: names[computation.root_id] for computation in module.computations}
        for computation in module.computations:
            if computation.root_id not in {one.id for one in computation.instructions}:
                root = names[computation.root_id]
                raise InputError(f"{where}: {root!r}, the root of computation {computation.name!r}, is not in it.")
    except KeyError as error:
        raise InputError(
            f"{where}: the program refers to instruction or computation {error}, which it lacks."
        ) from None
    return Program(
        program_id=program_id,
        name=module.name,
        fingerprint=module.frontend_attributes.map.get("fingerprint_before_lhs") or _fingerprint(module),
        instructions=instructions,
        computations={c.name: tuple(one.name for one in c.instructions) for c in module.computations},
        roots=roots,
        frames=frames,
        buffers=read_peak(proto),
        schedule={
            called[number]: tuple(names[one] for one in sequence.instruction_ids if one in names)
            for number, sequence in module.schedule.sequences.items()
            if number in called
        },
    )


def _read_instruction(
    one: hlo_pb2.HloInstruction,
    computation: str,
    names: dict[int, str],
    called: dict[int, str],
    frame_id: int | None,
    cost: Cost,
    assignment: hlo_pb2.DeviceAssignment,
) -> Instruction:
    return Instruction(
        name=one.name,
        opcode=one.opcode,
        kind=one.fusion_kind,
        computation=computation,
        op_name=one.metadata.op_name,
        frame_id=frame_id,
        bytes=count_bytes(one.shape),
        operands=tuple(names[number] for number in one.operand_ids),
        called=tuple(called[number] for number in one.called_computation_ids),
        elements=count_elements(one.shape),
        flops=cost.flops,
        transcendentals=cost.transcendentals,
        bytes_accessed=cost.bytes_accessed,
        on_host=on_host(one.shape),
        group_size=(group_size := read_group_size(one)),
        groups=name_devices(read_groups(one), assignment) if group_size else (),
        channel_id=one.channel_id if one.channel_id > 0 else None,
        scheduling_name=one.metadata.scheduling_name,
        parameter_number=one.parameter_number,
        layout=one.shape.layout.SerializeToString(deterministic=True).hex(),
        target=one.custom_call_target,
    )


def _read_frames(index: hlo_pb2.StackFrameIndex, where: str) -> dict[int, Frame]:
    frames = {}
    try:
        for number, frame in enumerate(index.stack_frames, start=1):
            location = _at(index.file_locations, frame.file_location_id)
            frames[number] = Frame(
                frame_id=number,
                parent_id=frame.parent_frame_id or None,
                file=_at(index.file_names, location.file_name_id),
                line=location.line,
                function=_at(index.function_names, location.function_name_id),
            )
    except IndexError:
        raise InputError(f"{where}: a stack frame refers to a file, function or line that is not there.") from None
    return _without_circles(frames)


def _without_circles(frames: dict[int, Frame]) -> dict[int, Frame]:
    """Cuts each stack where it would come back to a frame of its own, or goes on to one that is absent."""
    sound: set[int] = set()
    for number in frames:
        path: dict[int, None] = {}
        here: int | None = number
        while here is not None and here not in sound:
            path[here] = None
            parent = frames[here].parent_id
            if parent is not None and (parent not in frames or parent in path):
                frames[here] = replace(frames[here], parent_id=None)
                break
            here = parent
        sound.update(path)
    return frames


def _add_lines(module: hlo_pb2.HloModule, frames: dict[int, Frame]) -> dict[tuple[str, int], int]:
    """Adds a frame for each line that instructions without a stack name; returns their ids."""
    found: dict[tuple[str, int], int] = {}
    for computation in module.computations:
        for one in computation.instructions:
            line = (one.metadata.source_file, one.metadata.source_line)
            if line[0] and one.metadata.stack_frame_id not in frames and line not in found:
                found[line] = len(frames) + len(found) + 1
    for (file, number), frame_id in found.items():
        frames[frame_id] = Frame(frame_id=frame_id, parent_id=None, file=file, line=number, function="")
    return found


def _frame_of(one: hlo_pb2.HloInstruction, frames: dict[int, Frame], lines: dict[tuple[str, int], int]) -> int | None:
    own = one.metadata.stack_frame_id
    line = (one.metadata.source_file, one.metadata.source_line)
    return own if 0 < own <= len(frames) - len(lines) else lines.get(line)


def _at(values: Sequence[Value], number: int) -> Value:
    """The element of that number, counted from 1."""
    if number < 1:
        raise IndexError(number)
    return values[number - 1]


def _fingerprint(module: hlo_pb2.HloModule) -> str:
    """A digest of what is computed: opcodes, shapes and edges, without metadata and names."""
    digest = hashlib.sha256()
    for computation in module.computations:
        for one in computation.instructions:
            edges = (tuple(one.operand_ids), tuple(one.called_computation_ids))
            digest.update(repr((one.id, one.opcode, one.fusion_kind, one.custom_call_target, edges)).encode())
            digest.update(one.shape.SerializeToString(deterministic=True))
    return digest.hexdigest()[:32]
