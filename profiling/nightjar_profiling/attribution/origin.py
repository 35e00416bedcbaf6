"""The operation for which the compiler made an instruction without a stack.

In: a program, its data flow, the name of an instruction. Out: the frame, and which of the two answers it is. Both come
from structure and metadata alone:

- `layout`: XLA rewrites a convolution or a product with its dimensions in another order, and leaves the operation's
  metadata on the transpositions that restore the order of the result. So a convolution without a stack whose result is
  read through transpositions with the metadata of a convolution is that convolution. The transpositions may be fused
  into their reader; they must all have one stack. An instruction without a stack that moves an operand into that
  order, and has no other reader, belongs to the convolution too.
- `carried`: the values that a loop carries are copied before it, in it and from one round to the next, so that a round
  does not overwrite its input. Such a copy, if it keeps the layout of its operand, belongs to the loop.

A value that a program takes and returns unchanged is copied, unless the caller donates it: `passed`. No operation asked
for that copy, but the call did. JAX names a program after the function that it traced; the call is the frame around
that function.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

from nightjar_profiling.attribution.data_flow import Flow
from nightjar_profiling.hlo.hlo import Instruction, Program

PRIMITIVES = {"convolution": "conv_general_dilated", "dot": "dot_general"}  # JAX's name by opcode
_MOVES = ("transpose", "copy", "bitcast", "reshape")
_REACH = 6  # steps of a search: XLA puts one or two transpositions or copies in a row; so the cost stays linear


def find_made_for(program: Program, flow: Flow, name: str) -> tuple[int, Literal["layout", "carried"]] | None:
    """The frame of the operation that an instruction without a stack was made for; None if nothing says so."""
    moves = _moves(program, name)
    if moves:
        frame_id = _find_reader(program, flow, name)
    else:
        frame_id = _find_layout(program, flow, name)
    if frame_id is not None:
        return frame_id, "layout"
    frame_id = _find_carried(program, flow, name)
    if frame_id is None:
        return None
    return (frame_id, "carried")


def is_passed(program: Program, flow: Flow, name: str) -> bool:
    """Whether an instruction only copies a parameter of the program into its result."""
    if not _moves(program, name) or flow.callers[program.instructions[name].computation]:
        return False
    source = program.instructions[name]
    for _ in range(_REACH):
        if source.opcode == "parameter" or len(source.operands) != 1:
            break
        source = program.instructions[source.operands[0]]
    ring = [name]
    for _ in range(_REACH):
        ring = [other for reached in ring for other in flow.users[reached]]
        if any(program.instructions[other].opcode not in (*_MOVES, "tuple") for other in ring):
            return False
        if not ring:
            break
    return source.opcode == "parameter" and not ring


def find_call(program: Program) -> int | None:
    """The frame that called the function which the program was traced from; None if there is not exactly one."""
    traced = _plain(program.name.removeprefix("jit_"))
    calls: set[int | None] = set()
    for frame_id in {
        instruction.frame_id for instruction in program.instructions.values() if instruction.frame_id is not None
    }:
        call = None
        for frame in program.stack(frame_id):
            if _plain(frame.site.function.rpartition(".")[2]) == traced:
                call = frame.parent_id
        calls.add(call)
    if len(calls) == 1:
        return calls.pop()
    return None


def _plain(name: str) -> str:
    """A function's name as in the name of a program: `<lambda>` is `_lambda` there."""
    return re.sub(r"\W+", "_", name).strip("_")


def _kernel(program: Program, name: str) -> list[Instruction]:
    """The computation of one kernel: the instruction, or its fused instructions."""
    instruction = program.instructions[name]
    if instruction.opcode == "fusion":
        return [program.instructions[part] for part in program.below(name)]
    return [instruction]


def _moves(program: Program, name: str) -> bool:
    """Whether an instruction puts values into another order, and does nothing else."""
    opcodes = {part.opcode for part in _kernel(program, name)} - {"parameter"}
    return bool(opcodes) and opcodes <= {*_MOVES}


def _find_reader(program: Program, flow: Flow, name: str) -> int | None:
    """The frame of the convolution or product in another layout that alone reads the moved value."""
    frames = {_find_layout(program, flow, user) for user in flow.users[name]}
    if len(frames) == 1:
        return frames.pop()
    return None


def _find_layout(program: Program, flow: Flow, name: str) -> int | None:
    instructions, kernel = program.instructions, _kernel(program, name)
    opcodes = {reader.opcode for reader in kernel} & PRIMITIVES.keys()
    if len(opcodes) != 1 or any(reader.frame_id is not None for reader in (instructions[name], *kernel)):
        return None
    primitive = PRIMITIVES[opcodes.pop()]
    frames: set[int] = set()
    ring, seen = [name], {name}
    for _ in range(_REACH):
        readers = dict.fromkeys(
            other for reader in ring for other in _readers(program, flow, reader) if other not in seen
        )
        moved = [reader for reader in readers if instructions[reader].opcode in (*_MOVES, "parameter")]
        seen.update(moved)
        frames |= {
            frame_id
            for reader in moved
            if (frame_id := instructions[reader].frame_id) is not None
            and instructions[reader].op_name.rpartition("/")[2] == primitive
        }
        ring = [reader for reader in moved if instructions[reader].frame_id is None]
    if len(frames) == 1:
        return frames.pop()
    return None


def _readers(program: Program, flow: Flow, name: str) -> Iterator[str]:
    """The readers of a value: its users and, if they are fusions, the parameters inside."""
    yield from flow.users[name]
    for parameter in flow.entries[name]:
        callers = flow.callers[program.instructions[parameter].computation]
        if all(program.instructions[caller].opcode == "fusion" for caller in callers):
            yield parameter


def _find_carried(program: Program, flow: Flow, name: str) -> int | None:
    frames = {program.instructions[loop].frame_id for loop in find_loops(program, flow, name)}
    if len(frames) == 1:
        return frames.pop()
    return None


def find_loops(program: Program, flow: Flow, name: str) -> set[str]:
    """The loops for which an instruction copies a value that they carry."""
    copy = program.instructions[name]
    if copy.opcode != "copy" or any(program.instructions[operand].layout != copy.layout for operand in copy.operands):
        return set()
    loops = {loop for user in flow.users[name] for loop in _loops_of_tuple(program, flow, user)}
    if _comes_from_loop(program, name):
        loops |= {loop for loop in flow.callers[copy.computation] if program.instructions[loop].opcode == "while"}
    return loops


def _loops_of_tuple(program: Program, flow: Flow, name: str) -> Iterator[str]:
    """The loops that a tuple is handed to, before the first round or by each for the next."""
    instruction = program.instructions[name]
    if instruction.opcode == "tuple":
        readers = [
            *flow.users[name],
            *(flow.callers[instruction.computation] if name == program.roots[instruction.computation] else ()),
        ]
        yield from (reader for reader in readers if program.instructions[reader].opcode == "while")


def _comes_from_loop(program: Program, name: str) -> bool:
    """Whether a copy is, directly or through copies, of the parameter of its computation."""
    for _ in range(_REACH):
        instruction = program.instructions[name]
        if instruction.opcode == "parameter":
            return True
        if instruction.opcode not in ("copy", "get-tuple-element") or len(instruction.operands) != 1:
            return False
        name = instruction.operands[0]
    return False
