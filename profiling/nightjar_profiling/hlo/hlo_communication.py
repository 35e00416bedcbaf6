"""What does a program communicate, without decoding all of it?

In: a serialized HloProto. Out: a `Program` with the instructions alone that communicate, their operands and what wraps
them, which is all that `collective_kinds` asks for. Of a program of 60k instructions it takes a tenth of the
time of the whole.

Source: openxla/xla:xla/service/hlo.proto
"""

from __future__ import annotations

import functools

from nightjar_profiling.hlo.hlo import Instruction, Program
from nightjar_profiling.hlo.hlo_groups import name_devices, read_group_size, read_groups
from nightjar_profiling.hlo.shapes import count_bytes, on_host
from nightjar_profiling.protos import hlo_pb2

SENDS = ("all-", "collective-", "reduce-scatter", "ragged-all-to-all", "send", "recv")
CALLS = ("fusion", "async-start", "call")
SLICES = ("dynamic-slice", "dynamic-update-slice")  # between the memories of host and device


def read_communication(data: bytes, program_id: int, fingerprint: str = "") -> Program:
    """The communicating part of a program; the bytes are known to be an HloProto."""
    proto = hlo_pb2.HloProto()
    proto.ParseFromString(data)
    module = proto.hlo_module
    home = {computation.id: computation.name for computation in module.computations}
    callers: dict[int, list[tuple[int, hlo_pb2.HloInstruction]]] = {}
    wanted: list[tuple[int, hlo_pb2.HloInstruction]] = []
    slices: list[tuple[int, hlo_pb2.HloInstruction]] = []
    for computation in module.computations:
        number = computation.id
        for one in computation.instructions:
            role = _find_role(one.opcode)
            if role is SENDS:
                wanted.append((number, one))
            elif role is SLICES:
                slices.append((number, one))
            elif role is CALLS:
                for called in one.called_computation_ids:
                    callers.setdefault(called, []).append((number, one))
    by_id = _index(module, {number for number, _ in slices})
    wanted += ((number, one) for number, one in slices if _touches_host(one, by_id))
    kept: dict[int, tuple[int, hlo_pb2.HloInstruction]] = {}
    while wanted:
        number, one = wanted.pop()
        if one.id not in kept:
            kept[one.id] = (number, one)
            wanted += callers.get(number, ())
    by_id = _index(module, {number for number, _ in kept.values()})
    instructions = {}
    inside: dict[str, list[str]] = {name: [] for name in home.values()}
    for number, one in kept.values():
        for other in (one, *(by_id[operand] for operand in one.operand_ids if operand in by_id)):
            if other.name not in instructions:
                instructions[other.name] = _decode(
                    other, home[number], by_id, home, module.device_assignment, whole=other is one
                )
        instructions[one.name] = _decode(one, home[number], by_id, home, module.device_assignment, whole=True)
        inside[home[number]].append(one.name)
    return Program(
        program_id=program_id,
        name=module.name,
        fingerprint=fingerprint,
        instructions=instructions,
        computations={name: tuple(found) for name, found in inside.items()},
        roots={},
        frames={},
    )


@functools.lru_cache(maxsize=1024)
def _find_role(opcode: str) -> tuple[str, ...] | None:
    if opcode.startswith(SENDS):
        return SENDS
    return next((role for role in (CALLS, SLICES) if opcode in role), None)


def _index(module: hlo_pb2.HloModule, computations: set[int]) -> dict[int, hlo_pb2.HloInstruction]:
    """The instructions of these computations by id; operands are of the same computation."""
    return {one.id: one for each in module.computations if each.id in computations for one in each.instructions}


def _touches_host(one: hlo_pb2.HloInstruction, by_id: dict[int, hlo_pb2.HloInstruction]) -> bool:
    return on_host(one.shape) or any(on_host(by_id[number].shape) for number in one.operand_ids if number in by_id)


def _decode(
    one: hlo_pb2.HloInstruction,
    computation: str,
    by_id: dict[int, hlo_pb2.HloInstruction],
    home: dict[int, str],
    assignment: hlo_pb2.DeviceAssignment,
    *,
    whole: bool,
) -> Instruction:
    return Instruction(
        name=one.name,
        opcode=one.opcode,
        kind=one.fusion_kind,
        computation=computation,
        op_name=one.metadata.op_name,
        frame_id=None,
        bytes=count_bytes(one.shape),
        operands=tuple(by_id[number].name for number in one.operand_ids if number in by_id) if whole else (),
        called=tuple(home[number] for number in one.called_computation_ids if number in home) if whole else (),
        on_host=on_host(one.shape),
        group_size=(group_size := read_group_size(one)),
        groups=name_devices(read_groups(one), assignment) if group_size else (),
        channel_id=one.channel_id or None,
    )
