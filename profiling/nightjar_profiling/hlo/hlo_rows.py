"""The rows of a program in the tables `programs`, `instructions`, `frames`, `buffers` and `memory_over_time`.

In: a program. Out: rows by table; an instruction's row also names a fusion's main work, by its contents.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from nightjar_profiling.hlo.hlo import Instruction, Program
from nightjar_profiling.hlo.sharding import compare_shapes

PRODUCTS = ("dot", "convolution")
REDUCTIONS = ("reduce", "reduce-window")


def program_rows(
    program: Program, whole_shapes: Mapping[str, str] = MappingProxyType({})
) -> dict[str, list[dict[str, Any]]]:
    """The rows of a program in the tables `programs`, `instructions`, `frames`, `buffers` and `memory_over_time`.

    Args:
        whole_shapes: shape of the whole array, by instruction, from the program before optimizations.
    """
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
                **describe_split(instruction, whole_shapes.get(instruction.name, "")),
                "bytes": instruction.bytes,
                "flops": instruction.flops,
                "bytes_accessed": instruction.bytes_accessed,
                "main_work": find_main_work(program, instruction),
            }
            for instruction in program.instructions.values()
        ],
        "frames": [
            {
                **key,
                "frame_id": frame.frame_id,
                "parent_id": frame.parent_id,
                "file": frame.site.file,
                "line": frame.site.line,
                "function": frame.site.function,
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
        "memory_over_time": [
            {**key, "position": position, "instruction": moment.instruction, "live_bytes": moment.live_bytes}
            for position, moment in enumerate(program.memory)
        ],
    }


def describe_split(instruction: Instruction, whole_shape: str) -> dict[str, str | None]:
    """How an instruction's result is split over devices: as XLA recorded it, else by its shapes."""
    recorded = instruction.sharding
    whole = instruction.global_shape if recorded else whole_shape
    split = recorded or compare_shapes(whole_shape, instruction.shape)
    return {"sharding": split or None, "global_shape": (whole or None) if split else None}


def find_main_work(program: Program, fusion: Instruction) -> str | None:
    """The opcode that dominates a fusion.

    Returns:
        `dot` or `convolution` if it does half of the floating point operations or more; else `reduce` if the fusion
        holds a reduction of more elements than it makes itself; None for other fusions and instructions.
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
