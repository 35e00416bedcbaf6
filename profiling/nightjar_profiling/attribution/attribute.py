"""Attribution of the time of instructions to Python stacks.

In: a program and the names of the instructions that ran. Out: their `Attribution`s. Pure. The rules, in this order:

1. `own`: the instruction has a stack frame in its metadata; `carried`: and copies a value that a loop carries.
2. `called`: it calls computations (a fusion, a call, an async start), and the instructions inside have frames.
3. `layout`, `carried`: the compiler made it for an operation that has a stack, and the program says for which
   (`made_for`): a convolution or a product in another layout, with the moves of its operands; a copy of a value that a
   loop carries.
4. `operand`, `user`: it has no frame (a copy or a broadcast that XLA inserted) and takes the frame of the nearest
   instruction, by data flow, that has one by rule 1 or 2. If an operand and a user are equally near, the operand wins.
   The walk goes through tuples and bitcasts and across the border of a computation: from a parameter to the operands of
   the instruction that calls its computation, from a root to the users of that instruction. The operands of a
   collective that XLA combined out of many share it, by their bytes, though it has the frame of one of them. This is
   an inference, and is counted apart.
5. `numbered`, `placed`: in place of `own`, `called`, `layout` and `carried` if the trace does not name the
   instruction with its kernels (nodes of CUDA graphs) and the reader found it. `numbered`: by the number of the node
   in its graph, which then agrees with the names and the order of all kernels of the graph. `placed`: only by the
   place of the kernel among others, which is an inference.
6. `passed`: it only copies a parameter of the program into its result; the frame is the call's (`find_call`).
7. `none`: no rule above finds a frame. Nothing is ever guessed from names.

A fusion has two answers, and both are kept. `root_weight` gives the whole time to the fusion's own frame; if it has
none, to the frame of the instruction nearest to its root, which produces the kernel's output. `weight` splits the time
over the instructions inside that have frames, by `fusion_cost`. A while, a conditional or a custom call is never split:
it keeps its line. The cost is linear in the size of the program: every frame flows outward once, from all instructions
that have one at the same time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from nightjar_profiling.attribution.data_flow import Flow
from nightjar_profiling.attribution.fusion_cost import split_costs
from nightjar_profiling.attribution.origin import find_call, find_loops, find_made_for, is_passed
from nightjar_profiling.hlo.collective_kinds import KINDS
from nightjar_profiling.hlo.hlo import Program

How = Literal["own", "called", "layout", "carried", "numbered", "passed", "operand", "user", "placed", "none"]
DIRECT: tuple[How, ...] = ("own", "called", "layout", "carried", "numbered", "passed")
INFERRED: tuple[How, ...] = ("operand", "user", "placed")
CALLED = ("psum", "pmax", "pmin", "all_", "reduce_scatter", "ppermute")  # collectives of the program, in its own line


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """A share of an instruction's time that belongs to a frame.

    Attributes:
        weight: with fusions split over their instructions; an instruction's weights sum to 1.
        root_weight: with fusions given whole to their root; an instruction's weights sum to 1.
    """

    program_id: int
    instruction: str
    frame_id: int | None
    weight: float
    root_weight: float
    how: How


def attribute(
    program: Program, names: Iterable[str], placed: Mapping[str, Literal["numbered", "placed"]] | None = None
) -> list[Attribution]:
    """Attributes the instructions of a program that ran.

    Args:
        names: of the instructions that ran; one that the program lacks is attributed to nothing.
        placed: how an instruction was found that the trace does not name with its kernels.

    Returns:
        For each name, in the order given, one attribution or more.
    """
    names = list(names)
    frames, costs = _Frames(program), split_costs(program, names)
    attributions = [attribution for name in names for attribution in _attribute_one(program, frames, costs, name)]
    placed = placed or {}
    return [
        replace(attribution, how=placed[attribution.instruction])
        if attribution.instruction in placed and attribution.how in DIRECT
        else attribution
        for attribution in attributions
    ]


def _attribute_one(
    program: Program, frames: _Frames, costs: Mapping[str, Mapping[int, float]], name: str
) -> list[Attribution]:
    frame_id, how = frames.find(name)
    shares: dict[tuple[int | None, How], tuple[float, float]] = {(frame_id, how): (1.0, 1.0)}
    if how in ("own", "operand") and (combined := _share_combined(program, frames, name, how)):
        shares = combined
    elif how in DIRECT:
        parts = _weigh(costs.get(name, {}))
        if parts:
            shares[frame_id, how] = (0.0, 1.0)
            for inner, weight in parts.items():
                _, whole = shares.get((inner, "called"), (0.0, 0.0))
                shares[inner, "called"] = (weight, whole)
    return [
        Attribution(
            program_id=program.program_id,
            instruction=name,
            frame_id=frame,
            weight=weight,
            root_weight=root_weight,
            how=kind,
        )
        for (frame, kind), (weight, root_weight) in shares.items()
    ]


def _share_combined(
    program: Program, frames: _Frames, name: str, how: How
) -> dict[tuple[int | None, How], tuple[float, float]] | None:
    """Shares of a collective that XLA combined out of many: its operands' shares, by their bytes."""
    collective = program.instructions[name]
    if collective.opcode.removesuffix("-start") not in KINDS or len(collective.operands) < 2:
        return None
    if how == "own" and collective.op_name.rpartition("/")[2].startswith(CALLED):
        return None
    sizes: dict[int, int] = defaultdict(int)
    for operand in collective.operands:
        frame_id, _ = frames.find(operand)
        if frame_id is not None:
            sizes[frame_id] += program.instructions[operand].bytes
    total = sum(sizes.values())
    if not total or (how == "own" and len(sizes) < 2):
        return None
    return {(frame_id, "operand"): (size / total, size / total) for frame_id, size in sizes.items()}


def _weigh(costs: Mapping[int, float]) -> dict[int, float]:
    """Shares of the frames inside a fusion or its wrapper; empty if nothing inside carries a frame."""
    total = sum(costs.values())
    if total <= 0:
        return {}
    return {frame_id: cost / total for frame_id, cost in costs.items()}


class _Frames:
    """The frame of every instruction of a program, by the rules above, a fusion's whole."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.inside: dict[str, int | None] = {}  # by computation: the frame nearest to its root
        self.flow: Flow | None = None
        self.calls: list[int | None] = []  # the frame of the call, once it is looked for
        self.inferred: Mapping[How, dict[str, tuple[int, int]]] | None = None

    def find(self, name: str) -> tuple[int | None, How]:
        """The frame of an instruction, and how it was found."""
        if name not in self.program.instructions:
            return None, "none"
        own = self.program.instructions[name].frame_id
        if own is not None and self._is_carried(name):
            return own, "carried"
        if own is not None:
            return own, "own"
        called = self._called(name)
        if called is not None:
            return called, "called"
        if self.flow is None:
            self.flow = Flow(self.program)
        made = find_made_for(self.program, self.flow, name)
        if made is not None:
            return made
        if self.inferred is None:
            self.inferred = {"operand": self._spread(self.flow.after), "user": self._spread(self.flow.before)}
        reached = [(self.inferred[how][name], how) for how in self.inferred if name in self.inferred[how]]
        if not reached:
            return self._find_passed(self.flow, name)
        (_, frame_id), how = min(reached, key=lambda found: found[0][0])
        return frame_id, how

    def _is_carried(self, name: str) -> bool:
        if self.program.instructions[name].opcode != "copy":
            return False
        if self.flow is None:
            self.flow = Flow(self.program)
        return bool(find_loops(self.program, self.flow, name))

    def _find_passed(self, flow: Flow, name: str) -> tuple[int | None, How]:
        if not is_passed(self.program, flow, name):
            return None, "none"
        if not self.calls:
            self.calls = [find_call(self.program)]
        return self.calls[0], "none" if self.calls[0] is None else "passed"

    def _spread(self, onward: Callable[[str], list[str]]) -> dict[str, tuple[int, int]]:
        """Distance to, and frame of, the nearest instruction with a frame, breadth first from all of them at once."""
        reached: dict[str, tuple[int, int]] = {}
        ring: list[tuple[str, int]] = []
        for name, instruction in self.program.instructions.items():
            frame_id = instruction.frame_id
            if frame_id is None:
                frame_id = self._called(name)
            if frame_id is not None:
                reached[name] = (0, frame_id)
                ring.append((name, frame_id))
        distance = 0
        while ring:
            distance += 1
            following: list[tuple[str, int]] = []
            for name, frame_id in ring:
                for other in onward(name):
                    if other not in reached:
                        reached[other] = (distance, frame_id)
                        following.append((other, frame_id))
            ring = following
        return reached

    def _called(self, name: str) -> int | None:
        """The frame nearest to the roots of an instruction's computations."""
        for computation in self.program.instructions[name].called:
            if computation not in self.inside:
                self._look_inside(computation)
            frame_id = self.inside[computation]
            if frame_id is not None:
                return frame_id
        return None

    def _look_inside(self, computation: str) -> None:
        """Finds the frame of a computation, those that it calls first; no recursion, which a deep program breaks."""
        instructions = self.program.instructions
        waiting = [computation]
        while waiting:
            current = waiting[-1]
            self.inside.setdefault(current, None)  # a circle, as a damaged file may hold, ends here
            members = (instructions[name] for name in self.program.computations[current])
            deeper = [c for member in members for c in member.called if c not in self.inside]
            if deeper:
                waiting += dict.fromkeys(deeper)
                continue
            self.inside[current] = self._nearest_to_root(waiting.pop())

    def _nearest_to_root(self, computation: str) -> int | None:
        instructions = self.program.instructions
        ring, seen = [self.program.roots[computation]], {self.program.roots[computation]}
        while ring:
            following: list[str] = []
            for name in ring:
                instruction = instructions[name]
                frame_id = instruction.frame_id
                if frame_id is None:
                    inner = (self.inside.get(computation) for computation in instruction.called)
                    frame_id = next((inner_id for inner_id in inner if inner_id is not None), None)
                if frame_id is not None:
                    return frame_id
                fresh = [operand for operand in instruction.operands if operand not in seen]
                seen.update(fresh)
                following += dict.fromkeys(fresh)
            ring = following
        return None
