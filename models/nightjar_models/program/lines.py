"""Python lines of instructions, inferred if the compiler recorded none.

In: a `Module`. Out: the line of an instruction. If it has none, which is common for cuBLASLt calls and zeroed buffers,
the line of the nearest instruction that uses its result, else of the nearest operand, marked as inferred. And the
instructions of each line, from which the gate names the lines that a change of the program came from.
"""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Any

from nightjar_models.measuring.hlo import size_bytes
from nightjar_models.program.digest import digest_lines
from nightjar_models.program.module import Line, Module

UNCOUNTED = frozenset(("parameter", "constant", "tuple", "get-tuple-element", "bitcast"))  # of `tally_lines`
WITHOUT_LINE = frozenset(("parameter", "constant"))  # their users do not show their origin
MOST_SEEN = 500  # instructions to visit in each direction; in a large program the origin is near


class Lines:
    """The lines of a program."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._users: dict[int, list[int]] = defaultdict(list)
        for instruction in module.instructions.values():
            for number in instruction.operand_ids:
                self._users[number].append(instruction.id)

    def find(self, instruction: Any) -> tuple[Line | None, bool]:
        """The line of an instruction (None if there is none nearby), and whether it was inferred."""
        if (line := self._module.line(instruction)) is not None:
            return line, False
        if instruction.opcode in WITHOUT_LINE:
            return None, False
        line = self._nearest(instruction, forward=True) or self._nearest(instruction, forward=False)
        return line, line is not None

    def _nearest(self, instruction: Any, *, forward: bool) -> Line | None:
        instructions = self._module.instructions
        waiting, seen = deque([instruction.id]), {instruction.id}
        while waiting and len(seen) < MOST_SEEN:
            number = waiting.popleft()
            for neighbour in self._users.get(number, ()) if forward else instructions[number].operand_ids:
                if neighbour not in seen:
                    if (line := self._module.line(instructions[neighbour])) is not None:
                        return line
                    seen.add(neighbour)
                    waiting.append(neighbour)
        return None


def tally_lines(module: Module) -> dict[str, dict[str, Any]]:
    """Count and output bytes of the instructions of each Python line by opcode, and the digest of their computation.

    Instructions inside of fusions are counted, too.
    """
    lines: dict[str, dict[str, dict[str, int]]] = {}
    for instruction in module.instructions.values():
        line = module.line(instruction)
        if line is None or instruction.opcode in UNCOUNTED:
            continue
        tally = lines.setdefault(str(line), {}).setdefault(instruction.opcode, {"count": 0, "bytes": 0})
        tally["count"] += 1
        tally["bytes"] += size_bytes(instruction.shape)
    digests = digest_lines(module)
    return {
        line: {"opcodes": dict(sorted(tallies.items())), "digest": digests[line]}
        for line, tallies in sorted(lines.items())
    }
