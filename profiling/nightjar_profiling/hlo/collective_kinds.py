"""Which instructions of a program communicate, and how much do they send?

In: a program. Out: a `Collective` for each instruction that starts one: the instruction itself, an asynchronous
start, a fusion or an `async-start` that wraps one, or a copy between device and host memory by a slice (memory
offloading).

Sizes and factors follow NCCL and nccl-tests. `message_bytes` is what one rank hands to NCCL: of an all-gather its own
part, of a reduce-scatter the part it receives, else its whole operand. The algorithm bandwidth is the whole data by the
time, `size_factor * message_bytes / duration`; the bus bandwidth is that times `bus_factor`, which makes the number
comparable with the speed of the links:

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
    """What an instruction communicates.

    Attributes:
        kind: all-gather, all-reduce, ..., host-to-device, device-to-host.
        message_bytes: as NCCL counts it for one rank.
        group_size: devices that take part; None where the program does not say.
        channel_id: None where it has none.
        groups: ids of the devices of each group, where there are several; empty where not known.
    """

    kind: str
    message_bytes: int
    group_size: int | None
    channel_id: int | None
    groups: tuple[tuple[int, ...], ...] = ()

    @property
    def size_factor(self) -> float | None:
        """Whole data by message size; None where the group is not known."""
        gathers = self.kind in ("all-gather", "reduce-scatter")
        return self.group_size if gathers else 1.0

    @property
    def bus_factor(self) -> float | None:
        """Bus bandwidth by algorithm bandwidth; None where the group is not known."""
        if self.kind not in ("all-gather", "reduce-scatter", "all-reduce", "all-to-all", "ragged-all-to-all"):
            return 1.0
        if not self.group_size:
            return None
        return (2 if self.kind == "all-reduce" else 1) * (self.group_size - 1) / self.group_size


def find_collectives(program: Program) -> dict[str, Collective]:
    """The communicating instructions of a program, by name; linear in its size."""
    found, below = {}, _find_wrapped(program)
    for one in program.instructions.values():
        inner = one if _kind(one) in KINDS else _wrapped(one, below)
        if inner is not None:
            found[one.name] = _describe(program, inner)
    return found


def _kind(one: Instruction) -> str:
    return one.opcode.removesuffix("-start")


def _wrapped(one: Instruction, below: Mapping[str, Instruction]) -> Instruction | None:
    """The communicating instruction that this one wraps."""
    inside = (below[called] for called in one.called if called in below) if one.opcode in WRAPPERS else ()
    return next(iter(inside), None)


def _find_wrapped(program: Program) -> dict[str, Instruction]:
    """By computation, an instruction in it or below it that communicates, the first of the program."""
    callers: dict[str, list[str]] = defaultdict(list)
    for one in program.instructions.values():
        for called in one.called:
            callers[called].append(one.computation)
    found: dict[str, Instruction] = {}
    for one in program.instructions.values():
        if one.opcode in KINDS or _offloads(program, one):
            waiting = [one.computation]
            while waiting:
                computation = waiting.pop()
                if computation not in found:
                    found[computation] = one
                    waiting += callers[computation]
    return found


def _offloads(program: Program, one: Instruction) -> bool:
    """Whether a slice copies between the memories of device and host."""
    operands = list(_operands(program, one))
    if one.opcode == "dynamic-slice" and operands:
        return one.on_host != operands[0].on_host
    if one.opcode == "dynamic-update-slice" and len(operands) > 1:
        return one.on_host == operands[0].on_host != operands[1].on_host
    return False


def _describe(program: Program, one: Instruction) -> Collective:
    operands = list(_operands(program, one))
    if one.opcode in ("dynamic-slice", "dynamic-update-slice"):
        size = one.bytes if one.opcode == "dynamic-slice" else operands[1].bytes
        kind = "device-to-host" if one.on_host else "host-to-device"
        return Collective(kind=kind, message_bytes=size, group_size=1, channel_id=None)
    kind = _kind(one)
    group_size = 2 if kind in PAIRWISE else one.group_size
    size = sum(operand.bytes for operand in operands[: 1 if kind in PAIRWISE else None])
    if kind == "recv":
        size = one.bytes
    if kind == "reduce-scatter" and group_size:
        size //= group_size
    groups = () if kind in PAIRWISE else one.groups
    return Collective(kind=kind, message_bytes=size, group_size=group_size, channel_id=one.channel_id, groups=groups)


def _operands(program: Program, one: Instruction) -> Iterator[Instruction]:
    return (program.instructions[name] for name in one.operands)
