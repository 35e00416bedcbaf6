"""Work of a program that another way of writing it would not need, found in its structure.

In: a program and the names of the instructions that ran. Out: rows of the table `avoidable`: a kind of such work, and
the fraction of an instruction's cost that it is.

- `lookup`: a product with one-hot rows, and their making: every position is compared with an index.
- `sort`: a sort of which all readers take a small slice. What JAX lowered from `top_k` is left out.
- `donate`: a copy of an argument in its own layout, since only a donated argument may be overwritten by a result.
- `copy`: another copy in its own layout, which keeps a value that is overwritten. It transposes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from nightjar_profiling.attribution.data_flow import Flow
from nightjar_profiling.attribution.fusion_cost import WRAPPERS, split_cost
from nightjar_profiling.hlo.hlo import Program

_MOVES = ("bitcast", "convert", "copy", "get-tuple-element", "reshape", "reverse", "transpose")
_SMALL = 8  # times fewer elements than the whole
_REACH = 12  # steps of a search, through the borders of fusions


def find_avoidable(program: Program, names: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The rows of `avoidable`, of the instructions that ran."""
    flow = Flow(program)
    kinds = {
        part: kind
        for instruction in program.instructions
        for kind, parts in _judge(program, flow, instruction)
        for part in parts
    }
    for name in names if kinds else ():
        costs = {name: 1.0}
        if name in program.instructions and not kinds.keys().isdisjoint(program.below(name)):
            costs = split_cost(program, name) or costs
        fractions: dict[str, float] = {}
        for part, cost in costs.items():
            if part in kinds:
                fractions[kinds[part]] = fractions.get(kinds[part], 0.0) + cost / sum(costs.values())
        for kind, fraction in fractions.items():
            yield {"program_id": program.program_id, "instruction": name, "kind": kind, "fraction": fraction}


def _judge(program: Program, flow: Flow, name: str) -> Iterator[tuple[str, list[str]]]:
    """The kind of avoidable work that an instruction ends, and the instructions that do it."""
    instruction, instructions = program.instructions[name], program.instructions
    operands = [instructions[operand] for operand in instruction.operands]
    if instruction.opcode == "dot":
        for operand in operands:
            made = _trace(program, flow, operand.name)
            if _is_one_hot(program, flow, made[-1]):
                yield "lookup", [name, *made]
    elif instruction.opcode == "sort" and operands and not instruction.op_name.endswith("/top_k"):
        if _is_cut(program, flow, name, operands[0].elements / _SMALL):
            yield "sort", [name]
    elif instruction.opcode == "copy" and [operand.layout for operand in operands] == [instruction.layout]:
        root = instructions[program.roots[instruction.computation]]
        shapes = [instructions[part].shape for part in (root.name, *root.operands)]
        is_argument = operands[0].opcode == "parameter" and not flow.callers[instruction.computation]
        is_kept = is_argument and operands[0].name not in program.donated and instruction.shape in shapes
        yield "donate" if is_kept else "copy", [name]


def _trace(program: Program, flow: Flow, name: str) -> list[str]:
    """A value and where it comes from, as long as it is only moved; through the borders of fusions."""
    path = [name]
    for _ in range(_REACH):
        instruction = program.instructions[path[-1]]
        if instruction.opcode in WRAPPERS:
            sources = [program.roots[computation] for computation in instruction.called]
        else:
            sources = flow.before(instruction.name)
        if instruction.opcode not in (*WRAPPERS, "parameter", *_MOVES) or len(sources) != 1:
            break
        path += sources
    return path


def _is_one_hot(program: Program, flow: Flow, name: str) -> bool:
    """Whether a value is true where an index is equal to a position."""
    compared, ends = program.instructions[name], []
    for operand in compared.operands:
        end = program.instructions[_trace(program, flow, operand)[-1]]
        expanded = end.operands if end.opcode == "broadcast" else (end.name,)
        ends += [program.instructions[part].opcode for part in expanded]
    return compared.opcode == "compare" and compared.op_name.endswith("/eq") and ends.count("iota") == 1


def _is_cut(program: Program, flow: Flow, name: str, most: float) -> bool:
    """Whether all readers of a value take a slice of it, of `most` elements or fewer."""
    waiting, slices = [name], 0
    for _ in range(_REACH):
        readers = [program.instructions[reader] for value in waiting for reader in flow.after(value)]
        waiting = [reader.name for reader in readers if reader.opcode in ("parameter", *_MOVES)]
        others = [reader for reader in readers if reader.opcode not in ("parameter", *WRAPPERS, *_MOVES)]
        if any(reader.opcode != "slice" or reader.elements > most for reader in others):
            return False
        slices += len(others)
    return bool(slices) and not waiting
