"""Digests of a compiled module's computation, whole and by Python line, without names, order and layout of memory.

In: a `Module`. Out: a digest that differs if an instruction takes other operands, another constant, direction of a
comparison or dimension, though all counts are the same. An instruction is described by its opcode, attributes and
shape, and by its operands' descriptions, `DEPTH` levels up; parameters of fusions are followed to the fusion's
operands. So a change alters the descriptions near it, and their lines.
"""

from __future__ import annotations

import functools
import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from nightjar_models.program.module import Module

DEPTH = 3
_ATTRIBUTES = ("literal", "window", "padding_config", "gather_dimension_numbers", "scatter_dimension_numbers")
_TRANSPARENT = frozenset(("bitcast", "broadcast", "copy", "reshape", "convert"))
_CALLS = frozenset(("fusion", "call"))


def digest_program(module: Module) -> str:
    describe = _describe(module)
    return _digest(describe(number, DEPTH) for number in module.instructions)


def digest_lines(module: Module) -> dict[str, str]:
    """The digest of the instructions of each line, such as `train.py:12 loss`."""
    describe, lines = _describe(module), defaultdict(list)
    for number, instruction in module.instructions.items():
        line = module.line(instruction)
        if line is not None:
            lines[str(line)].append(describe(number, DEPTH))
    return {line: _digest(descriptions) for line, descriptions in sorted(lines.items())}


def _digest(descriptions: Iterable[bytes]) -> str:
    return hashlib.sha256(b"".join(sorted(descriptions))).hexdigest()[:16]


def _describe(module: Module) -> Callable[[int, int], bytes]:
    """A function of an instruction's id and a depth: the digest of its description."""
    sources, instructions = _find_sources(module), module.instructions

    def resolve(number: int) -> int:
        """The instruction that computes a value: inside of a fusion, or the source of its parameter."""
        while True:
            instruction = instructions[number]
            operands = instruction.operand_ids
            if instruction.opcode in _TRANSPARENT and operands:
                number = operands[0]
            elif instruction.opcode in _CALLS and instruction.called_computation_ids:
                number = module.computations[instruction.called_computation_ids[0]].root_id
            elif number in sources:
                number = sources[number]
            elif instruction.opcode == "get-tuple-element":
                whole = instructions[resolve(operands[0])]
                if whole.opcode != "tuple":
                    return number
                number = whole.operand_ids[instruction.tuple_index]
            else:
                return number

    @functools.cache
    def describe(number: int, depth: int) -> bytes:
        instruction = instructions[number]
        digest = hashlib.sha256(_attributes(instruction))
        if depth:
            for operand in instruction.operand_ids:
                digest.update(describe(resolve(operand), depth - 1))
        return digest.digest()[:16]

    return describe


def _find_sources(module: Module) -> dict[int, int]:
    """The operand behind each parameter of a fusion or call, by id."""
    sources: dict[int, int] = {}
    for caller in module.instructions.values():
        if caller.opcode not in _CALLS:
            continue
        for number in caller.called_computation_ids:
            for inner in module.computations[number].instructions:
                if inner.opcode == "parameter" and inner.parameter_number < len(caller.operand_ids):
                    sources[inner.id] = caller.operand_ids[inner.parameter_number]
    return sources


def _attributes(instruction: Any) -> bytes:
    shape = instruction.shape
    fixed = f"{instruction.opcode} {instruction.custom_call_target} {instruction.comparison_direction} "
    fixed += f"{shape.element_type} {list(shape.dimensions)} {instruction.tuple_index} {list(instruction.dimensions)}"
    parts = [getattr(instruction, name) for name in _ATTRIBUTES]
    parts += instruction.slice_dimensions
    parts += [
        getattr(instruction, name).SerializeToString(deterministic=True)
        for name in ("dot_dimension_numbers", "convolution_dimension_numbers")
    ]
    if instruction.opcode == "parameter":
        fixed += f" {instruction.parameter_number}"
    return fixed.encode() + b"|".join(parts)
