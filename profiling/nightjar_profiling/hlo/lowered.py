"""A program before XLA's optimizations, as JAX lowered it: its operations, and which of them compute the same value.

In: a serialized HloProto of the module before optimizations. Out: a `Lowered`. Calls are inlined, as XLA does: an
operation inside has the name and the stack of its call before its own. Two operations have one `value` if they are the
same operation on the same values (value numbering), as common subexpression elimination merges them. Operations that no
result needs are left out, and so are operations that only move or name data: XLA makes and removes these at will.

Source: openxla/xla:xla/service/hlo.proto; openxla/xla:xla/hlo/transforms/simplifiers/hlo_cse.cc;
P. Briggs, K. Cooper, L. Simpson, Value Numbering, Software: Practice and Experience 27(6), 1997
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from nightjar_profiling.errors import InputError
from nightjar_profiling.hlo.frames import FrameIndex, read_frames
from nightjar_profiling.hlo.hlo import parse_proto
from nightjar_profiling.hlo.joined import Stack, join_stacks
from nightjar_profiling.hlo.shapes import describe_shape
from nightjar_profiling.protos import hlo_pb2

MOVES = frozenset(
    (
        *("parameter", "constant", "iota", "broadcast", "tuple", "get-tuple-element", "bitcast", "reshape", "copy"),
        *("transpose", "convert", "call", "fusion", "while", "conditional", "after-all", "opt-barrier"),
        "add-dependency",
    )
)
MOST_OPERATIONS = 500_000  # after inlining: 20 times a model of 100 unrolled layers; beyond, nothing is reported
IDENTITY = ("id", "name", "metadata", "operand_ids", "called_computation_ids")


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """An operation of the program that is needed and computes something."""

    opcode: str
    op_name: str
    stack: Stack
    shape: str
    value: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lowered:
    """A program before optimizations.

    Attributes:
        name: of the module, which the optimized one keeps.
        arguments: shapes of the parameters of the whole program.
    """

    name: str
    arguments: tuple[str, ...]
    operations: tuple[Operation, ...]
    where: str


def read_lowered(data: bytes, where: str, names: Collection[str] | None = None) -> Lowered | None:
    """Decodes a module before optimizations.

    Args:
        names: of the modules that are wanted; None: all.

    Returns:
        None if it is not wanted, or too large once its calls are inlined.
    """
    module = parse_proto(data, where).hlo_module
    if names is not None and module.name not in names:
        return None
    numbering = _Numbering(module, FrameIndex(read_frames(module.stack_frame_index, where)))
    try:
        operations = numbering.number_module()
    except (KeyError, IndexError, RecursionError) as error:
        raise InputError(f"{where}: calls or operands that do not exist, or calls in a circle: {error}.") from None
    if operations is None:
        return None
    entry = numbering.computations[module.entry_computation_id]
    parameters = sorted(
        (i for i in entry.instructions if i.opcode == "parameter"), key=lambda instruction: instruction.parameter_number
    )
    arguments = tuple(describe_shape(instruction.shape) for instruction in parameters)
    return Lowered(name=module.name, arguments=arguments, operations=operations, where=where)


def read_lowered_folders(raw: Path, names: Collection[str] | None = None) -> Iterator[Lowered]:
    """The programs that a capture kept before optimizations: `raw/*.lowered/*.hlo.pb`, and programs in XLA's dumps.

    Only those of some names, if any are given. A damaged file is left out: the program may have been killed.
    """
    seen = set[bytes]()
    for pattern in ("*.lowered/*.hlo.pb", "*.dump/*.before_optimizations.hlo.pb"):
        for path in sorted(raw.glob(pattern)):
            data = path.read_bytes()
            if data in seen:  # of several ranks
                continue
            seen.add(data)
            try:
                lowered = read_lowered(data, str(path), names)
            except InputError:
                continue
            if lowered is not None:
                yield lowered


class _TooLargeError(Exception):
    """More operations than MOST_OPERATIONS."""


@dataclass(slots=True)
class _Node:
    """A value while the program is inlined: which number, and the nodes that it needs."""

    value: int
    operands: tuple[_Node, ...] = ()
    parts: tuple[_Node, ...] | None = None  # of a tuple
    operation: Operation | None = None
    below: tuple[_Node, ...] = ()  # roots of the computations that it runs
    needed: bool = False


@dataclass(slots=True)
class _Numbering:
    """Numbers the values of a module."""

    module: hlo_pb2.HloModule
    frames: FrameIndex
    computations: dict[int, hlo_pb2.HloComputation] = field(default_factory=dict)
    numbers: dict[object, int] = field(default_factory=dict)
    digests: dict[int, bytes] = field(default_factory=dict)
    bodies: dict[int, _Node] = field(default_factory=dict)
    named: list[tuple[str, Stack]] = field(default_factory=list)
    operations: list[_Node] = field(default_factory=list)
    count: int = 0

    def number_module(self) -> tuple[Operation, ...] | None:
        """The operations that the program needs, each with its value; None if there are too many."""
        self.computations = {computation.id: computation for computation in self.module.computations}
        try:
            root = self._body(self.module.entry_computation_id)
        except _TooLargeError:
            return None
        waiting = [root]
        while waiting:
            node = waiting.pop()
            if not node.needed:
                node.needed = True
                waiting += [*node.operands, *(node.parts or ()), *node.below]
        joined = join_stacks(self.named)
        needed = (node.operation for node in self.operations if node.needed and node.operation is not None)
        return tuple(replace(one, stack=joined[one.op_name, one.stack]) for one in needed)

    def _body(self, number: int) -> _Node:
        """The root of a computation that is not inlined, such as a loop's body: its parameters are its own values."""
        if number not in self.bodies:
            arguments = [
                _Node(value=self._number(("parameter", number, instruction.parameter_number)))
                for instruction in sorted(self._parameters(number), key=lambda i: i.parameter_number)
            ]
            self.bodies[number] = self._inline(number, arguments, (), "")
        return self.bodies[number]

    def _parameters(self, number: int) -> list[hlo_pb2.HloInstruction]:
        return [i for i in self.computations[number].instructions if i.opcode == "parameter"]

    def _inline(self, number: int, arguments: Sequence[_Node], stack: Stack, prefix: str) -> _Node:
        computation = self.computations[number]
        nodes: dict[int, _Node] = {}
        for instruction in computation.instructions:
            nodes[instruction.id] = self._add(instruction, nodes, arguments, stack, prefix)
        return nodes[computation.root_id]

    def _add(
        self,
        instruction: hlo_pb2.HloInstruction,
        nodes: dict[int, _Node],
        arguments: Sequence[_Node],
        stack: Stack,
        prefix: str,
    ) -> _Node:
        self.count += 1
        if self.count > MOST_OPERATIONS:
            raise _TooLargeError
        if instruction.opcode == "parameter":
            return arguments[instruction.parameter_number]
        operands = tuple(nodes[operand] for operand in instruction.operand_ids)
        op_name = f"{prefix}{instruction.metadata.op_name}"
        whole = stack + self.frames.stack_of(instruction.metadata.stack_frame_id)
        self.named.append((op_name, whole))
        if instruction.opcode == "call":
            inner = f"{op_name}/" if op_name else ""
            return self._inline(instruction.called_computation_ids[0], operands, whole, inner)
        if instruction.opcode == "get-tuple-element" and operands[0].parts is not None:
            return operands[0].parts[instruction.tuple_index]
        below = tuple(self._body(called) for called in instruction.called_computation_ids)
        value = self._number(
            (self._digest(instruction), *(node.value for node in operands), *(node.value for node in below))
        )
        node = _Node(value=value, operands=operands, below=below)
        if instruction.opcode == "tuple":
            node.parts = operands
        elif instruction.opcode not in MOVES and instruction.metadata.op_name:
            shape = describe_shape(instruction.shape)
            node.operation = Operation(
                opcode=instruction.opcode, op_name=op_name, stack=whole, shape=shape, value=value
            )
            self.operations.append(node)
        return node

    def _number(self, key: object) -> int:
        return self.numbers.setdefault(key, len(self.numbers))

    def _digest(self, instruction: hlo_pb2.HloInstruction) -> bytes:
        """All of an instruction that decides on its value, besides its operands and callees."""
        if instruction.id not in self.digests:
            bare = hlo_pb2.HloInstruction()
            bare.CopyFrom(instruction)
            for name in IDENTITY:
                bare.ClearField(name)
            self.digests[instruction.id] = bare.SerializeToString(deterministic=True)
        return self.digests[instruction.id]
