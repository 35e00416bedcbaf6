"""The communicating instructions of a program, and their message sizes.

In: a program. Out: a `Collective` for each instruction that starts one: the instruction itself, an asynchronous start,
a fusion or an `async-start` that wraps one, or a slice that copies between device and host memory (memory offloading).

Sizes and factors follow NCCL and nccl-tests. `message_bytes` counts the bytes that one rank passes to NCCL: for an
all-gather its own part, for a reduce-scatter the part that it receives, otherwise its whole operand. The algorithm
bandwidth is the total data per time, `size_factor * message_bytes / duration`; the bus bandwidth is that times
`bus_factor`, which makes it comparable with the speed of the links:

| kind | size factor | bus factor |
|---|---|---|
| all-gather, reduce-scatter | n | (n - 1) / n |
| all-reduce | 1 | 2 (n - 1) / n |
| all-to-all | 1 | (n - 1) / n |
| collective-permute, collective-broadcast, send, recv, copies | 1 | 1 |

Source: NVIDIA/nccl-tests:doc/PERFORMANCE.md, NVIDIA/nccl-tests:src/alltoall.cu
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from nightjar_profiling.hlo.hlo import Instruction, Program

KINDS = frozenset(
    (
        *("all-gather", "all-reduce", "all-to-all", "ragged-all-to-all", "collective-broadcast"),
        *("collective-permute", "reduce-scatter", "send", "recv"),
    )
)
PAIRWISE = frozenset(("collective-permute", "send", "recv"))
WRAPPERS = frozenset(("async-start", "fusion"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """The communication of an instruction.

    Attributes:
        kind: all-gather, all-reduce, ..., host-to-device, device-to-host.
        message_bytes: as NCCL counts it for one rank.
        group_size: devices that take part; None if unknown.
        channel_id: None if the instruction has no channel.
        groups: device ids of each group; empty for a single group or unknown ones.
    """

    kind: str
    message_bytes: int
    group_size: int | None
    channel_id: int | None
    groups: tuple[tuple[int, ...], ...] = ()

    @property
    def size_factor(self) -> float | None:
        """Total data relative to the message size; None if the group size is unknown."""
        if self.kind in ("all-gather", "reduce-scatter"):
            return self.group_size
        return 1.0

    @property
    def bus_factor(self) -> float | None:
        """Bus bandwidth relative to the algorithm bandwidth; None if the group size is unknown."""
        if self.kind not in ("all-gather", "reduce-scatter", "all-reduce", "all-to-all", "ragged-all-to-all"):
            return 1.0
        if not self.group_size:
            return None
        return (2 if self.kind == "all-reduce" else 1) * (self.group_size - 1) / self.group_size


def find_collectives(program: Program) -> dict[str, Collective]:
    """The communicating instructions of a program, by name; linear in its size."""
    collectives, inside = {}, _find_inside(program)
    for instruction in program.instructions.values():
        inner: Instruction | None = instruction
        if _kind(instruction) not in KINDS:
            inner = _wrapped(instruction, inside)
        if inner is not None:
            collectives[instruction.name] = _describe(program, inner)
    return collectives


def _kind(instruction: Instruction) -> str:
    return instruction.opcode.removesuffix("-start")


def _wrapped(instruction: Instruction, inside: Mapping[str, Instruction]) -> Instruction | None:
    """The communicating instruction that a fusion or an `async-start` wraps."""
    if instruction.opcode not in WRAPPERS:
        return None
    return next((inside[called] for called in instruction.called if called in inside), None)


def _find_inside(program: Program) -> dict[str, Instruction]:
    """By computation, the first communicating instruction in it or in a computation that it calls."""
    callers: dict[str, list[str]] = defaultdict(list)
    for instruction in program.instructions.values():
        for called in instruction.called:
            callers[called].append(instruction.computation)
    inside: dict[str, Instruction] = {}
    for instruction in program.instructions.values():
        if instruction.opcode in KINDS or _offloads(program, instruction):
            waiting = [instruction.computation]
            while waiting:
                computation = waiting.pop()
                if computation not in inside:
                    inside[computation] = instruction
                    waiting += callers[computation]
    return inside


def _offloads(program: Program, instruction: Instruction) -> bool:
    """Whether a slice copies between device and host memory."""
    operands = list(_operands(program, instruction))
    if instruction.opcode == "dynamic-slice" and operands:
        return instruction.on_host != operands[0].on_host
    if instruction.opcode == "dynamic-update-slice" and len(operands) > 1:
        return instruction.on_host == operands[0].on_host != operands[1].on_host
    return False


def _describe(program: Program, instruction: Instruction) -> Collective:
    operands = list(_operands(program, instruction))
    if instruction.opcode in ("dynamic-slice", "dynamic-update-slice"):
        if instruction.opcode == "dynamic-slice":
            size = instruction.bytes
        else:
            size = operands[1].bytes
        if instruction.on_host:
            kind = "device-to-host"
        else:
            kind = "host-to-device"
        return Collective(kind=kind, message_bytes=size, group_size=1, channel_id=None)
    kind, channel_id = _kind(instruction), instruction.channel_id
    if kind in PAIRWISE:
        if kind == "recv":
            size = instruction.bytes
        else:
            size = sum(operand.bytes for operand in operands[:1])
        return Collective(kind=kind, message_bytes=size, group_size=2, channel_id=channel_id)
    group_size, groups = instruction.group_size, instruction.groups
    size = sum(operand.bytes for operand in operands)
    if kind == "reduce-scatter" and group_size:
        size //= group_size
    return Collective(kind=kind, message_bytes=size, group_size=group_size, channel_id=channel_id, groups=groups)


def _operands(program: Program, instruction: Instruction) -> Iterator[Instruction]:
    return (program.instructions[name] for name in instruction.operands)
