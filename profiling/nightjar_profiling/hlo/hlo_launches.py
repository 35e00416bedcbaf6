"""Kernels that each instruction of a program may launch.

In: a scheduled program. Out: for each computation its launching instructions in schedule order, as `Launcher`s; and for
a kernel, from its name and kind, a `Kernel`: the instruction that it was emitted for, or its kind of library kernel.
XLA names an emitted kernel after its instruction, with `_` for characters that C forbids, and reuses it for every
instruction with an equal computation: such instructions are one *family*. Kernels of libraries, and CUDA's copies and
memsets, have names of their own.

Source: openxla/xla:xla/backends/gpu/codegen/, xla/service/gpu/kernel_reuse_cache.cc, xla/backends/gpu/runtime/
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from nightjar_profiling.hlo.hlo import Program

KernelKind = Enum("KernelKind", ["EMITTED", "COPY", "MEMSET", "COLLECTIVE", "LIBRARY", "CONDITION"])

COMMUNICATION = ("all-", "collective-", "reduce-scatter", "ragged-all-to-all", "send", "recv")
CONTROL = ("while", "conditional", "call")
CHOOSING = ("while", "conditional")
NOTHING = frozenset(
    (
        *("parameter", "constant", "get-tuple-element", "tuple", "bitcast", "after-all", "add-dependency"),
        *("opt-barrier", "domain", "async-update", *CONTROL),
    )
)
MOVING = frozenset(("copy", "copy-start", "slice", "dynamic-slice", "dynamic-update-slice", "reshape"))
FILLING = frozenset(("broadcast", "iota"))
LIBRARIES = frozenset(("custom-call", "convolution", "dot", "fft", "cholesky", "triangular-solve", "sort", "rng"))
PLAIN_KINDS = ("kLoop", "kInput", "kOutput")  # fusions that XLA always emits itself
COPY_KERNEL = re.compile(r"memcpy(?:\d|$)|\[?CUDA memcpy", re.IGNORECASE)  # a copy node may run as a CUDA kernel
MEMSET_KERNEL = re.compile(r"memset(?:\d|$)|\[?CUDA memset", re.IGNORECASE)
COLLECTIVE_KERNEL = re.compile(r"nccl|rccl|nvshmem", re.IGNORECASE)
CONDITION_KERNEL = re.compile(r"set_(?:case|if|if_else|for|while)_condition")  # chooses the next branch of a graph
VENDORS = (("cudnn", re.compile(r"cudnn|sdpa|[dw]grad|fprop|convolve|conv2d")), ("cublas", re.compile(r"nvjet|cublas")))
UNIQUE = re.compile(r"__\d+$")  # the suffix that XLA appends to a duplicate name


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    """An instruction that launches kernels, copies or memsets.

    Attributes:
        families: of the kernels that XLA emits for it.
        copies: it may be a CUDA copy.
        clears: it may be only a memset.
        library: it may call a library, and so launch several kernels.
        vendor: the library, from the custom call target; empty if unknown.
        collective: it communicates.
        chooses: it is a loop or a conditional: within a graph a separate kernel selects the next branch.
    """

    name: str
    families: frozenset[int] = frozenset()
    copies: bool = False
    clears: bool = False
    library: bool = False
    vendor: str = ""
    collective: bool = False
    chooses: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A kernel, identified by its name; `family` and `instruction` are None unless XLA emitted it."""

    name: str
    kind: KernelKind
    instruction: str | None = None
    family: int | None = None
    vendor: str = ""


class LaunchPlan:
    """The launches of a program, by computation."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._families: dict[object, int] = {}
        self._bodies: dict[str, int] = {}
        callers: dict[str, set[str]] = {}
        for instruction in program.instructions.values():
            for computation in instruction.called:
                callers.setdefault(computation, set()).add(instruction.opcode)
        running = [name for name in program.schedule if callers.get(name, {"call"}) & set(CONTROL)]
        for computation in program.computations:  # called computations come first
            if computation not in running:
                self._bodies[computation] = self._number_body(computation)
        self.launchers = {
            computation: [
                self._describe(name)
                for name in program.schedule[computation]
                if (opcode := program.instructions[name].opcode) in CHOOSING
                or (opcode not in NOTHING and not opcode.endswith("-done"))
            ]
            for computation in running
        }
        self.computation_of = {
            launcher.name: computation for computation, launchers in self.launchers.items() for launcher in launchers
        }
        self._emitted: dict[str, str] = {}
        inside = (inner for name in self.computation_of for inner in program.below(name))
        for name in (*self.computation_of, *inside):
            self._emitted.setdefault(name_kernel(name), name)

    def find_kernel(self, name: str, kind: str = "kernel") -> Kernel:
        """Identifies a kernel by its name."""
        if kind == "memcpy" or COPY_KERNEL.match(name):
            return Kernel(name=name, kind=KernelKind.COPY)
        if kind == "memset" or MEMSET_KERNEL.match(name):
            return Kernel(name=name, kind=KernelKind.MEMSET)
        instruction = self._emitted.get(name, self._emitted.get(UNIQUE.sub("", name)))
        if instruction is not None:
            family = self.family_of(instruction)
            return Kernel(name=name, kind=KernelKind.EMITTED, instruction=instruction, family=family)
        if CONDITION_KERNEL.match(name):
            return Kernel(name=name, kind=KernelKind.CONDITION)
        if COLLECTIVE_KERNEL.search(name):
            return Kernel(name=name, kind=KernelKind.COLLECTIVE)
        vendor = next((vendor for vendor, pattern in VENDORS if pattern.search(name)), "")
        return Kernel(name=name, kind=KernelKind.LIBRARY, vendor=vendor)

    def family_of(self, name: str) -> int:
        """The number of an instruction's family: equal opcode, shapes and computation."""
        instruction = self.program.instructions[name]
        bodies = tuple(self._bodies.get(computation, -1) for computation in instruction.called)
        if not bodies:
            operands = tuple(map(self._shape_of, instruction.operands))
        else:
            operands = ()
        kind = (instruction.opcode, instruction.kind, instruction.target)
        return self._families.setdefault((*kind, *self._shape_of(name), bodies, operands), len(self._families))

    def _number_body(self, computation: str) -> int:
        """The number of a computation; equal computations share it."""
        instructions = [self.program.instructions[name] for name in self.program.computations[computation]]
        positions = {instruction.name: number for number, instruction in enumerate(instructions)}
        key = tuple(
            (self.family_of(i.name), i.parameter_number, tuple(positions.get(operand, -1) for operand in i.operands))
            for i in instructions
        )
        return self._families.setdefault(key, len(self._families))

    def _shape_of(self, name: str) -> tuple[int, int, str]:
        instruction = self.program.instructions[name]
        return instruction.elements, instruction.bytes, instruction.layout

    def _describe(self, name: str) -> Launcher:
        instruction = self.program.instructions[name]
        if instruction.opcode in CHOOSING:
            return Launcher(name=name, chooses=True)
        inside = [self.program.instructions[inner] for inner in self.program.below(name)]
        parts = [instruction, *inside]
        outer = {"fusion", "async-start", "async-done"} | NOTHING
        work = {part.opcode for part in parts if part.elements > 1} - outer  # without index computations
        work = work or {part.opcode for part in parts} - outer
        emitted = [part.name for part in inside if part.opcode in ("fusion", "sort")]
        library = any(part.opcode in ("custom-call", "convolution", "sort") for part in parts)
        plain = instruction.opcode == "fusion" and instruction.kind in PLAIN_KINDS
        opcodes = {part.opcode for part in parts if instruction.kind == "kCustom"} | {instruction.opcode}
        return Launcher(
            name=name,
            families=frozenset(map(self.family_of, (name, *emitted))),
            copies="sort" in work or (bool(work) and work <= MOVING),
            clears=bool(work) and work <= FILLING,
            library=library or (not plain and not opcodes.isdisjoint(LIBRARIES)),
            vendor=next((vendor for vendor, _ in VENDORS if vendor in instruction.target), ""),
            collective=any(part.opcode.startswith(COMMUNICATION) for part in parts),
        )


def name_kernel(instruction: str) -> str:
    """The name of the kernel that XLA emits for an instruction.

    >>> name_kernel("loop_add_fusion.12")
    'loop_add_fusion_12'
    """
    return re.sub(r"\W", "_", instruction)
