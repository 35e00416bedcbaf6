"""The data flow of a program, across the borders of its computations.

In: a program. Out: a `Flow`: the source and the users of each instruction's value.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from nightjar_profiling.hlo.hlo import Instruction, Program


class Flow:
    """The data flow of a program across the borders of its computations."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.users: Mapping[str, list[str]] = defaultdict(list)
        self.entries: Mapping[str, list[str]] = defaultdict(list)  # from an operand to the parameters that receive it
        self.givers: Mapping[str, list[str]] = defaultdict(list)  # and back
        self.callers: Mapping[str, list[str]] = defaultdict(list)
        parameters: Mapping[str, list[Instruction]] = defaultdict(list)
        for instruction in program.instructions.values():
            if instruction.opcode == "parameter":
                parameters[instruction.computation].append(instruction)
        for instruction in program.instructions.values():
            for operand in instruction.operands:
                self.users[operand].append(instruction.name)
            for computation in instruction.called:
                self.callers[computation].append(instruction.name)
                for operand, parameter in _passed(instruction.operands, parameters[computation]):
                    self.entries[operand].append(parameter)
                    self.givers[parameter].append(operand)

    def before(self, name: str) -> list[str]:
        """Where the value comes from."""
        instruction = self.program.instructions[name]
        return [
            *instruction.operands,
            *self.givers[name],
            *(self.program.roots[computation] for computation in instruction.called),
        ]

    def after(self, name: str) -> list[str]:
        computation = self.program.instructions[name].computation
        leaves = name == self.program.roots.get(computation)
        return [*self.users[name], *self.entries[name], *(self.callers[computation] if leaves else [])]


def _passed(operands: tuple[str, ...], parameters: list[Instruction]) -> list[tuple[str, str]]:
    """Which operand of a caller becomes which parameter: by number; if the counts differ, each may be any."""
    if len(operands) == len(parameters):
        return [
            (operands[parameter.parameter_number], parameter.name)
            for parameter in parameters
            if parameter.parameter_number < len(operands)
        ]
    few = min(len(operands), len(parameters)) <= 2  # a conditional's; else the square of both could be large
    if not few:
        return []
    return [(operand, parameter.name) for operand in operands for parameter in parameters]
