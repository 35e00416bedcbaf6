"""The rows of a program in the tables `programs`, `instructions`, `frames` and `buffers`.

In: a program. Out: rows by table; an instruction's row also says what a fusion mostly does, by what it holds.
"""

from __future__ import annotations

from typing import Any

from nightjar_profiling.hlo.hlo import Instruction, Program

PRODUCTS = ("dot", "convolution")
REDUCTIONS = ("reduce", "reduce-window")


def program_rows(program: Program) -> dict[str, list[dict[str, Any]]]:
    """The rows of a program in the tables `programs`, `instructions`, `frames` and `buffers`."""
    key = {"program_id": program.program_id}
    return {
        "programs": [{**key, "name": program.name, "fingerprint": program.fingerprint}],
        "instructions": [
            {
                **key,
                "name": instruction.name,
                "opcode": instruction.category,
                "computation": instruction.computation,
                "op_name": instruction.op_name,
                "frame_id": instruction.frame_id,
                "shape": instruction.shape,
                "bytes": instruction.bytes,
                "flops": instruction.flops,
                "bytes_accessed": instruction.bytes_accessed,
                "main_work": find_main_work(program, instruction),
                "scheduling_name": instruction.scheduling_name or None,
            }
            for instruction in program.instructions.values()
        ],
        "frames": [
            {
                **key,
                "frame_id": frame.frame_id,
                "parent_id": frame.parent_id,
                "file": frame.file,
                "line": frame.line,
                "function": frame.function,
            }
            for frame in program.frames.values()
        ],
        "buffers": [
            {
                **key,
                "instruction": instruction.instruction,
                "kind": instruction.kind,
                "size_bytes": instruction.size_bytes,
            }
            for instruction in program.buffers
        ],
    }


def find_main_work(program: Program, fusion: Instruction) -> str | None:
    """The opcode that makes a fusion what it is.

    Returns:
        `dot` or `convolution` where half of the floating point operations or more are theirs; else `reduce` where the
        fusion holds a reduction of more elements than it makes itself; None of other fusions, and of what is no fusion.
    """
    if fusion.opcode != "fusion":
        return None
    inside = [program.instructions[name] for name in program.below(fusion.name)]
    flops = {
        opcode: sum(instruction.flops or 0.0 for instruction in inside if instruction.opcode == opcode)
        for opcode in PRODUCTS
    }
    largest = max(PRODUCTS, key=lambda opcode: flops[opcode])
    if flops[largest] > 0 and 2 * sum(flops.values()) >= sum(instruction.flops or 0.0 for instruction in inside):
        return largest
    reduced = (
        program.instructions[operand].elements
        for instruction in inside
        if instruction.opcode in REDUCTIONS
        for operand in instruction.operands
    )
    if max(reduced, default=0) > fusion.elements:
        return "reduce"
    return None
