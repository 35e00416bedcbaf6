"""A compiled program as plain data: instructions, their dependencies and their Python stacks.

In: a serialized HloProto. Out: a `Program`. Traces embed the module after all
optimizations. An instruction refers to its Python stack by `metadata.stack_frame_id`, or, if the compiler wrote only
one line per instruction (older XLA, other frontends), by `source_file` and `source_line`: a stack of one frame.

Source: openxla/xla:xla/service/hlo.proto, openxla/xla:xla/xla_data.proto
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from google.protobuf.message import DecodeError

from nightjar_profiling.errors import InputError
from nightjar_profiling.hlo.frames import Frame, FrameIndex, read_frames
from nightjar_profiling.hlo.hlo_cost import Cost, count_costs
from nightjar_profiling.hlo.hlo_groups import name_devices, read_group_size, read_groups
from nightjar_profiling.hlo.hlo_memory import Buffer, Moment, read_donated, read_memory_over_time, read_peak
from nightjar_profiling.hlo.joined import Site, join_stacks
from nightjar_profiling.hlo.shapes import count_bytes, count_elements, describe_shape, on_host
from nightjar_profiling.hlo.sharding import describe_sharding, multiply_shape, read_tiles
from nightjar_profiling.protos import hlo_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One HLO instruction; `operands` and `called` are names of instructions and computations.

    Attributes:
        kind: of a fusion: kLoop, kInput, kOutput, kCustom; otherwise empty.
        transcendentals: evaluations of exp, tanh and similar functions, which `flops` leaves out.
        groups: device ids of each group, if a collective runs in several groups; empty if unknown.
        channel_id: of a collective; None if it has no channel.
        parameter_number: of a parameter, the index of the caller's operand.
        layout: of the result, for comparison only; empty for a tuple.
        shape: of the result, as text; for a partitioned program, on one device.
        sharding: of a parameter or result of a partitioned program, as text; empty if not recorded.
        global_shape: of the whole array, if `sharding` determines it.
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
    parameter_number: int = 0
    layout: str = ""
    target: str = ""
    shape: str = ""
    sharding: str = ""
    global_shape: str = ""

    @property
    def category(self) -> str:
        """The opcode; `fusion:<kind>` for a fusion."""
        if self.kind:
            return f"{self.opcode}:{self.kind}"
        return self.opcode


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One compiled HLO module.

    Attributes:
        instructions: by name, which is unique in a module.
        computations: names of the instructions of each computation, operands before users.
        roots: name of the root instruction of each computation.
        buffers: live at the memory peak; empty if XLA's buffer assignment is not recorded.
        memory: of its temporary values in the order of the schedule; empty as `buffers`.
        schedule: names of the instructions of each computation, in execution order; empty if unknown.
        donated: parameters whose memory a result takes; empty if unknown.
    """

    program_id: int
    name: str
    fingerprint: str
    instructions: dict[str, Instruction]
    computations: dict[str, tuple[str, ...]]
    roots: dict[str, str]
    frames: dict[int, Frame]
    buffers: tuple[Buffer, ...] = ()
    memory: tuple[Moment, ...] = ()
    schedule: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    partitions: int = 1
    donated: frozenset[str] = frozenset()

    def stack(self, frame_id: int | None) -> Iterator[Frame]:
        """The frames of a stack, innermost first."""
        while (frame := self.frames.get(frame_id or 0)) is not None:
            yield frame
            frame_id = frame.parent_id

    def below(self, instruction: str) -> Iterator[str]:
        """All instructions of the computations that an instruction calls, directly or indirectly."""
        waiting, seen = list(self.instructions[instruction].called), set[str]()
        while waiting:
            computation = waiting.pop()
            if computation in seen:
                continue
            seen.add(computation)
            for name in self.computations[computation]:
                yield name
                waiting.extend(self.instructions[name].called)


def parse_proto(data: bytes, where: str, hint: str | None = None) -> hlo_pb2.HloProto:
    """A serialized HloProto as a message."""
    try:
        return hlo_pb2.HloProto.FromString(data)
    except DecodeError as error:
        raise InputError(f"{where}: not an HLO protobuf ({len(data)} bytes): {error}.", hint) from None


def read_program(data: bytes, program_id: int, where: str) -> Program:
    """Decodes a serialized HloProto."""
    proto = parse_proto(data, where)
    module = proto.hlo_module
    names = {i.id: i.name for computation in module.computations for i in computation.instructions}
    called = {computation.id: computation.name for computation in module.computations}
    frames = read_frames(module.stack_frame_index, where)
    frame_of = _join_stacks(module, frames)
    costs = count_costs(module)
    instructions = {}
    try:
        for computation in module.computations:
            for i in computation.instructions:
                instructions[i.name] = _read_instruction(
                    i, computation.name, names, called, frame_of.get(i.id), costs[i.id], module.device_assignment
                )
        roots = {computation.name: names[computation.root_id] for computation in module.computations}
        computations = {c.name: tuple(i.name for i in c.instructions) for c in module.computations}
    except KeyError as error:
        raise InputError(f"{where}: the program refers to unknown instruction or computation {error}.") from None
    _check_closed(computations, roots, instructions, where)
    return Program(
        program_id=program_id,
        name=module.name,
        fingerprint=module.frontend_attributes.map.get("fingerprint_before_lhs") or _fingerprint(module),
        instructions=instructions,
        computations=computations,
        roots=roots,
        frames=frames,
        buffers=read_peak(proto),
        memory=tuple(read_memory_over_time(proto)),
        schedule={
            called[number]: tuple(names[i] for i in sequence.instruction_ids if i in names)
            for number, sequence in module.schedule.sequences.items()
            if number in called
        },
        donated=read_donated(proto),
        partitions=max(1, module.device_assignment.computation_count),
    )


def _check_closed(
    computations: Mapping[str, tuple[str, ...]],
    roots: Mapping[str, str],
    instructions: Mapping[str, Instruction],
    where: str,
) -> None:
    """Checks that a root and operands are in the computation that uses them, by name: names may repeat."""
    for computation, names in computations.items():
        inside = set(names)
        if roots[computation] not in inside:
            root = roots[computation]
            raise InputError(f"{where}: {root!r}, the root of computation {computation!r}, is not in it.")
        for name in names:
            for operand in instructions[name].operands:
                if operand not in inside:
                    raise InputError(f"{where}: {operand!r}, an operand of {name!r}, is not in {computation!r}.")


def _read_instruction(
    instruction: hlo_pb2.HloInstruction,
    computation: str,
    names: dict[int, str],
    called: dict[int, str],
    frame_id: int | None,
    cost: Cost,
    assignment: hlo_pb2.DeviceAssignment,
) -> Instruction:
    shape, sharding = describe_shape(instruction.shape), instruction.sharding
    return Instruction(
        name=instruction.name,
        opcode=instruction.opcode,
        kind=instruction.fusion_kind,
        computation=computation,
        op_name=instruction.metadata.op_name,
        frame_id=frame_id,
        bytes=count_bytes(instruction.shape),
        operands=tuple(names[number] for number in instruction.operand_ids),
        called=tuple(called[number] for number in instruction.called_computation_ids),
        elements=count_elements(instruction.shape),
        flops=cost.flops,
        transcendentals=cost.transcendentals,
        bytes_accessed=cost.bytes_accessed,
        on_host=on_host(instruction.shape),
        group_size=(group_size := read_group_size(instruction)),
        groups=name_devices(read_groups(instruction), assignment) if group_size else (),
        channel_id=instruction.channel_id if instruction.channel_id > 0 else None,
        parameter_number=instruction.parameter_number,
        layout=instruction.shape.layout.SerializeToString(deterministic=True).hex(),
        target=instruction.custom_call_target,
        shape=shape,
        sharding=describe_sharding(sharding) if instruction.HasField("sharding") else "",
        global_shape=multiply_shape(shape, read_tiles(sharding)),
    )


def _add_lines(module: hlo_pb2.HloModule, frames: dict[int, Frame]) -> dict[tuple[str, int], int]:
    """Adds a frame for each source line of instructions without a stack; returns the ids by line."""
    lines: dict[tuple[str, int], int] = {}
    for computation in module.computations:
        for instruction in computation.instructions:
            line = (instruction.metadata.source_file, instruction.metadata.source_line)
            if line[0] and instruction.metadata.stack_frame_id not in frames and line not in lines:
                lines[line] = len(frames) + len(lines) + 1
    for (file, number), frame_id in lines.items():
        frames[frame_id] = Frame(frame_id=frame_id, parent_id=None, site=Site(file, number, ""))
    return lines


def _join_stacks(module: hlo_pb2.HloModule, frames: dict[int, Frame]) -> dict[int, int | None]:
    """The frame of each instruction that has one; adds the frames of stacks that are not in the file as they were."""
    recorded, lines = len(frames), _add_lines(module, frames)
    index, recorded_of = FrameIndex(frames), dict[int, tuple[int, str]]()
    for computation in module.computations:
        for i in computation.instructions:
            number: int | None = i.metadata.stack_frame_id
            if not 0 < i.metadata.stack_frame_id <= recorded:
                number = lines.get((i.metadata.source_file, i.metadata.source_line))
            if number is not None:
                recorded_of[i.id] = (number, i.metadata.op_name)
    joined = join_stacks((op_name, index.stack_of(number)) for number, op_name in set(recorded_of.values()))
    found: dict[int, int | None] = {}
    for instruction, (number, op_name) in recorded_of.items():
        stack = index.stack_of(number)
        found[instruction] = number
        if joined[op_name, stack] != stack:
            found[instruction] = index.frame_of(joined[op_name, stack])
    frames.update((frame.frame_id, frame) for frame in index.added)
    return found


def _fingerprint(module: hlo_pb2.HloModule) -> str:
    """A digest of the computation: opcodes, shapes and edges, without metadata and names."""
    digest = hashlib.sha256()
    for computation in module.computations:
        for instruction in computation.instructions:
            kind = (instruction.opcode, instruction.fusion_kind, instruction.custom_call_target)
            edges = (tuple(instruction.operand_ids), tuple(instruction.called_computation_ids))
            digest.update(repr((instruction.id, *kind, edges)).encode())
            digest.update(instruction.shape.SerializeToString(deterministic=True))
    return digest.hexdigest()[:32]
