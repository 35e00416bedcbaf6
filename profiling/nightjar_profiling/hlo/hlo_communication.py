"""The communicating part of a program, without decoding the whole program.

In: a serialized HloProto. Out: a `Program` that holds only the communicating instructions, their operands and the
instructions that wrap them, which is all that `collective_kinds` needs. For a program of 60k instructions this takes a
tenth of the time of decoding it.

Source: openxla/xla:xla/service/hlo.proto
"""

from __future__ import annotations

import functools
from dataclasses import replace

from nightjar_profiling.hlo.hlo import Instruction, Program
from nightjar_profiling.hlo.hlo_groups import name_devices, read_group_size, read_groups
from nightjar_profiling.hlo.shapes import count_bytes, on_host
from nightjar_profiling.protos import hlo_pb2

COMMUNICATION = ("all-", "collective-", "reduce-scatter", "ragged-all-to-all", "send", "recv")
CALLS = ("fusion", "async-start", "call")
SLICES = ("dynamic-slice", "dynamic-update-slice")  # between device and host memory


def read_communication(data: bytes, program_id: int, fingerprint: str = "") -> Program:
    """The communicating part of a program; the bytes must be a valid HloProto."""
    proto = hlo_pb2.HloProto()
    proto.ParseFromString(data)
    module = proto.hlo_module
    names = {computation.id: computation.name for computation in module.computations}
    callers: dict[int, list[tuple[int, hlo_pb2.HloInstruction]]] = {}
    communicating: list[tuple[int, hlo_pb2.HloInstruction]] = []
    slices: list[tuple[int, hlo_pb2.HloInstruction]] = []
    for computation in module.computations:
        number = computation.id
        for instruction in computation.instructions:
            role = _find_role(instruction.opcode)
            if role is COMMUNICATION:
                communicating.append((number, instruction))
            elif role is SLICES:
                slices.append((number, instruction))
            elif role is CALLS:
                for called in instruction.called_computation_ids:
                    callers.setdefault(called, []).append((number, instruction))
    by_id = _index(module, {number for number, _ in slices})
    waiting = communicating + [item for item in slices if _touches_host(item[1], by_id)]
    kept: dict[int, tuple[int, hlo_pb2.HloInstruction]] = {}
    while waiting:
        number, instruction = waiting.pop()
        if instruction.id not in kept:
            kept[instruction.id] = (number, instruction)
            waiting += callers.get(number, ())
    by_id = _index(module, {number for number, _ in kept.values()})
    instructions = {}
    computations: dict[str, list[str]] = {name: [] for name in names.values()}
    for number, instruction in kept.values():
        operands = [by_id[operand_id] for operand_id in instruction.operand_ids if operand_id in by_id]
        home = names[number]
        instructions[instruction.name] = replace(
            _decode(instruction, home, module.device_assignment),
            operands=tuple(operand.name for operand in operands),
            called=tuple(names[called] for called in instruction.called_computation_ids if called in names),
        )
        for operand in operands:
            if operand.name not in instructions:
                instructions[operand.name] = _decode(operand, home, module.device_assignment)
        computations[home].append(instruction.name)
    return Program(
        program_id=program_id,
        name=module.name,
        fingerprint=fingerprint,
        instructions=instructions,
        computations={name: tuple(members) for name, members in computations.items()},
        roots={},
        frames={},
    )


@functools.lru_cache(maxsize=1024)
def _find_role(opcode: str) -> tuple[str, ...] | None:
    if opcode.startswith(COMMUNICATION):
        return COMMUNICATION
    return next((role for role in (CALLS, SLICES) if opcode in role), None)


def _index(module: hlo_pb2.HloModule, computations: set[int]) -> dict[int, hlo_pb2.HloInstruction]:
    """The instructions of these computations, by id; operands belong to the same computation."""
    parts = [computation for computation in module.computations if computation.id in computations]
    return {instruction.id: instruction for part in parts for instruction in part.instructions}


def _touches_host(instruction: hlo_pb2.HloInstruction, by_id: dict[int, hlo_pb2.HloInstruction]) -> bool:
    return on_host(instruction.shape) or any(
        on_host(by_id[number].shape) for number in instruction.operand_ids if number in by_id
    )


def _decode(instruction: hlo_pb2.HloInstruction, computation: str, assignment: hlo_pb2.DeviceAssignment) -> Instruction:
    """An instruction without operands and called computations."""
    return Instruction(
        name=instruction.name,
        opcode=instruction.opcode,
        kind=instruction.fusion_kind,
        computation=computation,
        op_name=instruction.metadata.op_name,
        frame_id=None,
        bytes=count_bytes(instruction.shape),
        operands=(),
        called=(),
        on_host=on_host(instruction.shape),
        group_size=(group_size := read_group_size(instruction)),
        groups=name_devices(read_groups(instruction), assignment) if group_size else (),
        channel_id=instruction.channel_id or None,
    )
