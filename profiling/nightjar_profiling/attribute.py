"""Which Python stack does an instruction's time belong to?

Pure: in a program and the instructions that ran, out one `Attribution` each. The rules, in this order:

1. `own`: the instruction carries a stack frame in its metadata.
2. `called`: it calls computations (a fusion, a call); the frame is that of the instruction nearest to their root, which
   is what the kernel hands out. The whole time goes to that frame: weight 1.
3. `operand`, `user`: it has none (a copy or a broadcast that XLA put in); the frame is that of the nearest instruction,
   by data flow, that has one by rule 1 or 2. Of operands and users at one distance the operand wins. The walk goes
   through tuples and bitcasts and across the border of a computation: a parameter leads to the operands of what calls
   its computation, a root to its users. This is an inference, and is counted apart.
4. `none`: there is no such instruction. Nothing is ever guessed from names.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from nightjar_profiling.load.hlo import Program

How = Literal["own", "called", "operand", "user", "none"]
DIRECT: tuple[How, ...] = ("own", "called")
INFERRED: tuple[How, ...] = ("operand", "user")


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """A share of an instruction's time that belongs to a frame; the weights of an instruction sum to 1."""

    program_id: int
    instruction: str
    frame_id: int | None
    weight: float
    how: How


def attribute(program: Program, names: Iterable[str]) -> list[Attribution]:
    """Attributes the instructions of a program that ran.

    Args:
        program: with all its instructions.
        names: of the instructions that ran; one that the program lacks is attributed to nothing.

    Returns:
        Exactly one attribution for each name, in the order given.
    """
    flow = _Flow(program)
    return [
        Attribution(program_id=program.program_id, instruction=name, frame_id=frame_id, weight=1.0, how=how)
        for name in names
        for frame_id, how in [_find_frame(program, flow, name)]
    ]


def _find_frame(program: Program, flow: _Flow, name: str) -> tuple[int | None, How]:
    if name not in program.instructions:
        return None, "none"
    own = program.instructions[name].frame_id
    if own is not None:
        return own, "own"
    called = _find_called(program, name)
    if called is not None:
        return called, "called"
    return _find_nearest(program, flow, name)


class _Flow:
    """The data flow of a program across the borders of its computations."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.users: Mapping[str, list[str]] = defaultdict(list)
        self.callers: Mapping[str, list[str]] = defaultdict(list)
        for one in program.instructions.values():
            for operand in one.operands:
                self.users[operand].append(one.name)
            for computation in one.called:
                self.callers[computation].append(one.name)

    def before(self, name: str) -> list[str]:
        """Where the value comes from."""
        one = self.program.instructions[name]
        if one.opcode != "parameter":
            return list(one.operands)
        return [o for caller in self.callers[one.computation] for o in self.program.instructions[caller].operands]

    def after(self, name: str) -> list[str]:
        """Where the value goes to."""
        one = self.program.instructions[name]
        leaves = name == self.program.roots.get(one.computation)
        return self.users[name] + (self.callers[one.computation] if leaves else [])


def _find_called(program: Program, name: str) -> int | None:
    """The frame of the instruction nearest to the roots of what an instruction calls."""
    instructions = program.instructions

    def before(inner: str) -> list[str]:
        one = instructions[inner]
        return [*(program.roots[computation] for computation in one.called), *one.operands]

    roots = [program.roots[computation] for computation in instructions[name].called]
    return _walk(roots, before, lambda inner: instructions[inner].frame_id)


def _find_nearest(program: Program, flow: _Flow, name: str) -> tuple[int | None, How]:
    def frame_of(other: str) -> int | None:
        own = program.instructions[other].frame_id
        return own if own is not None else _find_called(program, other)

    # Step by step outward, operands first, so that the nearest wins whichever way it lies.
    rings: dict[How, list[str]] = {"operand": [name], "user": [name]}
    directions: dict[How, Callable[[str], list[str]]] = {"operand": flow.before, "user": flow.after}
    seen: dict[How, set[str]] = {"operand": {name}, "user": {name}}
    while any(rings.values()):
        for how in INFERRED:
            reached = [other for one in rings[how] for other in directions[how](one)]
            rings[how] = [other for other in dict.fromkeys(reached) if other not in seen[how]]
            seen[how].update(rings[how])
            for other in rings[how]:
                frame_id = frame_of(other)
                if frame_id is not None:
                    return frame_id, how
    return None, "none"


def _walk(
    start: Iterable[str], onward: Callable[[str], list[str]], frame_of: Callable[[str], int | None]
) -> int | None:
    """Breadth first from the start to the first instruction that has a frame."""
    ring, seen = list(dict.fromkeys(start)), set[str]()
    while ring:
        for name in ring:
            frame_id = frame_of(name)
            if frame_id is not None:
                return frame_id
        seen.update(ring)
        ring = [other for other in dict.fromkeys(o for name in ring for o in onward(name)) if other not in seen]
    return None
