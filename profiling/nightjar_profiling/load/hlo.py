"""Which instructions has a compiled program, how do they depend on each other, and which Python stack has each?

In: a serialized HloProto. Out: a `Program`, plain data, and its rows for the tables. Traces embed the module as it was
after all optimizations; `metadata.stack_frame_id` is the only link to Python (`source_file` is set on no instruction).

Source: openxla/xla:xla/service/hlo.proto, openxla/xla:xla/xla_data.proto
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from google.protobuf.message import DecodeError

from nightjar_profiling.errors import InputError
from nightjar_profiling.protos import hlo_pb2

Value = TypeVar("Value")

# Bits of a PrimitiveType, by its number in xla_data.proto. Tuples are summed; tokens and opaque values take no bytes.
ELEMENT_BITS = {
    **dict.fromkeys((30, 31), 1),
    **dict.fromkeys((26, 27), 2),
    **dict.fromkeys((21, 22, 32), 4),
    **dict.fromkeys((1, 2, 6, 19, 20, 23, 24, 25, 28, 29, 33), 8),
    **dict.fromkeys((3, 7, 10, 16), 16),
    **dict.fromkeys((4, 8, 11), 32),
    **dict.fromkeys((5, 9, 12, 15), 64),
    18: 128,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One HLO instruction; operands and called computations are given by name."""

    name: str
    opcode: str
    kind: str  # of a fusion: kLoop, kInput, kOutput, kCustom; else empty
    computation: str
    op_name: str
    frame_id: int | None
    bytes: int
    operands: tuple[str, ...]
    called: tuple[str, ...]

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
    """

    program_id: int
    name: str
    fingerprint: str
    instructions: dict[str, Instruction]
    computations: dict[str, tuple[str, ...]]
    roots: dict[str, str]
    frames: dict[int, Frame]

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
    try:
        instructions = {
            one.name: _read_instruction(one, computation.name, names, called, frames)
            for computation in module.computations
            for one in computation.instructions
        }
        roots = {computation.name: names[computation.root_id] for computation in module.computations}
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
    )


def program_rows(program: Program) -> dict[str, list[dict[str, Any]]]:
    """The rows of a program in the tables `programs`, `instructions` and `frames`."""
    key = {"program_id": program.program_id}
    return {
        "programs": [{**key, "name": program.name, "fingerprint": program.fingerprint}],
        "instructions": [
            {
                **key,
                "name": one.name,
                "opcode": one.category,
                "computation": one.computation,
                "op_name": one.op_name,
                "frame_id": one.frame_id,
                "bytes": one.bytes,
            }
            for one in program.instructions.values()
        ],
        "frames": [
            {
                **key,
                "frame_id": frame.frame_id,
                "parent_id": frame.parent_id,
                "file": frame.file,
                "line": frame.line,
                "function": frame.function,
            }
            for frame in program.frames.values()
        ],
    }


def _read_instruction(
    one: hlo_pb2.HloInstruction,
    computation: str,
    names: dict[int, str],
    called: dict[int, str],
    frames: dict[int, Frame],
) -> Instruction:
    frame_id = one.metadata.stack_frame_id
    return Instruction(
        name=one.name,
        opcode=one.opcode,
        kind=one.fusion_kind,
        computation=computation,
        op_name=one.metadata.op_name,
        frame_id=frame_id if frame_id in frames else None,
        bytes=count_bytes(one.shape),
        operands=tuple(names[number] for number in one.operand_ids),
        called=tuple(called[number] for number in one.called_computation_ids),
    )


def count_bytes(shape: hlo_pb2.Shape) -> int:
    """Bytes of a dense array of that shape, or of all arrays of a tuple."""
    if shape.tuple_shapes:
        return sum(count_bytes(part) for part in shape.tuple_shapes)
    bits = ELEMENT_BITS.get(shape.element_type, 0)
    for size in shape.dimensions:
        bits *= max(size, 0)
    return (bits + 7) // 8


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
    return frames


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
