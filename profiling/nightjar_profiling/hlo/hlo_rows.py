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
                "name": one.name,
                "opcode": one.category,
                "computation": one.computation,
                "op_name": one.op_name,
                "frame_id": one.frame_id,
                "bytes": one.bytes,
                "flops": one.flops,
                "bytes_accessed": one.bytes_accessed,
                "main_work": find_main_work(program, one),
                "scheduling_name": one.scheduling_name or None,
            }
            for one in program.instructions.values()
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
            {**key, "instruction": one.instruction, "kind": one.kind, "size_bytes": one.size_bytes}
            for one in program.buffers
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
    flops = {opcode: sum(one.flops or 0.0 for one in inside if one.opcode == opcode) for opcode in PRODUCTS}
    largest = max(PRODUCTS, key=lambda opcode: flops[opcode])
    if flops[largest] > 0 and 2 * sum(flops.values()) >= sum(one.flops or 0.0 for one in inside):
        return largest
    reduced = (
        program.instructions[operand].elements for one in inside if one.opcode in REDUCTIONS for operand in one.operands
    )
    return "reduce" if max(reduced, default=0) > fusion.elements else None
