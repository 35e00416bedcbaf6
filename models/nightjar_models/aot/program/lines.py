"""Which Python line is an instruction from, where the compiler noted one and where it did not?

In: a `Module`. Out: for an instruction its own line; without one, as cuBLASLt calls and zeroed buffers often are, that
of the nearest instruction that uses its result, else of the nearest that it is made of, and that this was inferred.
"""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Any

from nightjar_models.aot.program.module import Line, Module

MADE_BY_NO_LINE = frozenset(("parameter", "constant"))  # who uses them first says nothing of where they are from
MOST_SEEN = 500  # instructions that are looked at in each direction: in a large program near is near


class Lines:
    """The lines of a program."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._users: dict[int, list[int]] = defaultdict(list)
        for one in module.instructions.values():
            for number in one.operand_ids:
                self._users[number].append(one.id)

    def find(self, instruction: Any) -> tuple[Line | None, bool]:
        """The line of an instruction, None where there is none near, and whether it was inferred."""
        if (own := self._module.line(instruction)) is not None:
            return own, False
        if instruction.opcode in MADE_BY_NO_LINE:
            return None, False
        line = self._nearest(instruction, forward=True) or self._nearest(instruction, forward=False)
        return line, line is not None

    def _nearest(self, instruction: Any, *, forward: bool) -> Line | None:
        instructions = self._module.instructions
        waiting, seen = deque([instruction.id]), {instruction.id}
        while waiting and len(seen) < MOST_SEEN:
            number = waiting.popleft()
            for beside in self._users.get(number, ()) if forward else instructions[number].operand_ids:
                if beside not in seen:
                    if (line := self._module.line(instructions[beside])) is not None:
                        return line
                    seen.add(beside)
                    waiting.append(beside)
        return None
