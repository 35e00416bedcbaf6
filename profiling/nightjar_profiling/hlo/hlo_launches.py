"""Which kernels may each instruction of a program launch, as far as the HLO tells?

In: a scheduled program. Out: of each computation the instructions that launch something, in the order of the schedule,
as `Launcher`s; and of a kernel, from its name and kind, its `Kernel`: the instruction that it was emitted for, or what
sort of a library's kernel it is. XLA names a kernel that it emits after its instruction, with `_` for what C forbids,
and reuses it for every other instruction whose computation is the same: such instructions are one *family*. The kernels
of libraries, and the copies and clears of CUDA, carry names of their own.

Source: openxla/xla:xla/backends/gpu/codegen/, xla/service/gpu/kernel_reuse_cache.cc, xla/backends/gpu/runtime/
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from nightjar_profiling.hlo.hlo import Program
from nightjar_profiling.hlo.hlo_communication import SENDS

Sort = Enum("Sort", ["EMITTED", "COPY", "CLEAR", "COLLECTIVE", "LIBRARY"])

CONTROL = ("while", "conditional", "call")
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
COPY_KERNEL = re.compile(r"memcpy(?:\d|$)|\[?CUDA memcpy", re.IGNORECASE)  # a copy node may run as a kernel of CUDA's
CLEAR_KERNEL = re.compile(r"memset(?:\d|$)|\[?CUDA memset", re.IGNORECASE)
COLLECTIVE_KERNEL = re.compile(r"nccl|rccl|nvshmem", re.IGNORECASE)
VENDORS = (("cudnn", re.compile(r"cudnn|sdpa|[dw]grad|fprop|convolve|conv2d")), ("cublas", re.compile(r"nvjet|cublas")))
UNIQUE = re.compile(r"__\d+$")  # what XLA appends where a name is taken


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    """An instruction that launches something.

    Attributes:
        families: of the kernels that XLA emits for it.
        copies: it may be a copy of CUDA's.
        clears: it may be a clear alone.
        library: it may call a library, and so launch several kernels.
        vendor: whose library, as far as its target says; empty where not known.
        collective: it communicates.
    """

    name: str
    families: frozenset[int]
    copies: bool
    clears: bool
    library: bool
    vendor: str
    collective: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A kernel by its name: `family` and `instruction` of one that XLA emitted, else None."""

    name: str
    sort: Sort
    instruction: str | None = None
    family: int | None = None
    vendor: str = ""


class LaunchPlan:
    """What a program launches, computation by computation."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._families: dict[object, int] = {}
        self._bodies: dict[str, int] = {}
        callers: dict[str, set[str]] = {}
        for one in program.instructions.values():
            for computation in one.called:
                callers.setdefault(computation, set()).add(one.opcode)
        running = [name for name in program.schedule if callers.get(name, {"call"}) & set(CONTROL)]
        for computation in program.computations:  # those that are called come first
            if computation not in running:
                self._bodies[computation] = self._number_body(computation)
        self.launchers = {
            computation: [
                self._describe(name)
                for name in program.schedule[computation]
                if (opcode := program.instructions[name].opcode) not in NOTHING and not opcode.endswith("-done")
            ]
            for computation in running
        }
        self.home = {one.name: computation for computation, found in self.launchers.items() for one in found}
        self._emitted: dict[str, str] = {}
        inside = (inner for name in self.home for inner in program.below(name))
        for name in (*self.home, *inside):
            self._emitted.setdefault(name_kernel(name), name)

    def find_kernel(self, name: str, kind: str = "kernel") -> Kernel:
        """What a kernel of that name is.

        Args:
            name: as the driver knows it.
            kind: of the op: kernel, memcpy, memset.
        """
        if kind == "memcpy" or COPY_KERNEL.match(name):
            return Kernel(name=name, sort=Sort.COPY)
        if kind == "memset" or CLEAR_KERNEL.match(name):
            return Kernel(name=name, sort=Sort.CLEAR)
        instruction = self._emitted.get(name, self._emitted.get(UNIQUE.sub("", name)))
        if instruction is not None:
            return Kernel(name=name, sort=Sort.EMITTED, instruction=instruction, family=self.family_of(instruction))
        if COLLECTIVE_KERNEL.search(name):
            return Kernel(name=name, sort=Sort.COLLECTIVE)
        vendor = next((vendor for vendor, pattern in VENDORS if pattern.search(name)), "")
        return Kernel(name=name, sort=Sort.LIBRARY, vendor=vendor)

    def family_of(self, name: str) -> int:
        """The number that instructions share whose kernels are one: of equal opcode, shapes and computation."""
        one = self.program.instructions[name]
        bodies = tuple(self._bodies.get(computation, -1) for computation in one.called)
        operands = () if bodies else tuple(self._shape_of(operand) for operand in one.operands)
        key = (one.opcode, one.kind, one.target, *self._shape_of(name), bodies, operands)
        return self._families.setdefault(key, len(self._families))

    def _number_body(self, computation: str) -> int:
        """The number that computations share which compute the same."""
        members = self.program.computations[computation]
        place = {name: number for number, name in enumerate(members)}
        key = tuple(
            (self.family_of(name), one.parameter_number, tuple(place.get(operand, -1) for operand in one.operands))
            for name in members
            for one in (self.program.instructions[name],)
        )
        return self._families.setdefault(key, len(self._families))

    def _shape_of(self, name: str) -> tuple[int, int, str]:
        one = self.program.instructions[name]
        return one.elements, one.bytes, one.layout

    def _describe(self, name: str) -> Launcher:
        one = self.program.instructions[name]
        inside = [self.program.instructions[inner] for inner in self.program.below(name)]
        outer = {"fusion", "async-start", "async-done"} | NOTHING
        work = {part.opcode for part in (one, *inside) if part.elements > 1} - outer  # of one element: indices
        work = work or {part.opcode for part in (one, *inside)} - outer
        emitted = [part.name for part in inside if part.opcode in ("fusion", "sort")]
        library = bool({part.opcode for part in (one, *inside)} & {"custom-call", "convolution", "sort"})
        plain = one.opcode == "fusion" and one.kind in PLAIN_KINDS
        return Launcher(
            name=name,
            families=frozenset(map(self.family_of, (name, *emitted))),
            copies="sort" in work or (bool(work) and work <= MOVING),
            clears=bool(work) and work <= FILLING,
            library=(library or one.opcode in LIBRARIES or one.kind == "kCustom") and not (plain and not library),
            vendor=next((vendor for vendor, _ in VENDORS if vendor in one.target), ""),
            collective=any(part.opcode.startswith(SENDS) for part in (one, *inside)),
        )


def name_kernel(instruction: str) -> str:
    """The name of the kernel that XLA emits for an instruction.

    >>> name_kernel("loop_add_fusion.12")
    'loop_add_fusion_12'
    """
    return re.sub(r"\W", "_", instruction)
