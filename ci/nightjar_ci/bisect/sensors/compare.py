"""The difference between the programs of two rungs in words: instructions gained and lost, with their Python lines.

In: the programs of the rung before and of the one after. Out: lines of text, the largest difference first; none if both
compile the same.
"""

from __future__ import annotations

from collections.abc import Mapping

from nightjar_ci.bisect.sensors.programs import Program, Programs, is_traced_alike

_MOST_PROGRAMS = 5
_MOST_KINDS = 4  # of instructions, gained and lost, for each program
_LONGEST_SHAPE = 60


def compare_programs(before: Programs, after: Programs) -> list[str]:
    """The differences, a line for each program and each kind of instruction; empty if nothing is."""
    changed = [name for name in {**before, **after} if not _is_same(before.get(name), after.get(name))]
    if not changed:
        return []
    changed.sort(key=lambda name: -_distance(before.get(name, Program()), after.get(name, Program())))
    if is_traced_alike(before, after):
        lines = ["JAX hands the same programs to XLA on both sides; XLA compiles them to others:"]
    else:
        lines = ["JAX hands other programs to XLA:"]
    for name in changed[:_MOST_PROGRAMS]:
        lines += _compare(name, before.get(name), after.get(name))
    if len(changed) > _MOST_PROGRAMS:
        lines.append(f"and {len(changed) - _MOST_PROGRAMS} more programs")
    return lines


def _is_same(before: Program | None, after: Program | None) -> bool:
    return before is not None and after is not None and before.is_like(after)


def _compare(name: str, before: Program | None, after: Program | None) -> list[str]:
    if before is None or after is None:
        program = before or after or Program()
        verb = "is new" if before is None else "is gone"
        return [f"{name} {verb}: {sum(program.compiled.values())} instructions"]
    counts = [sum(program.compiled.values()) for program in (before, after)]
    head = f"{name}: {counts[0]} -> {counts[1]} instructions"
    if before.allocated_bytes != after.allocated_bytes:
        head += f", {before.allocated_bytes or 0:,} -> {after.allocated_bytes or 0:,} bytes allocated"
    gained, lost = _more(after.compiled, before.compiled), _more(before.compiled, after.compiled)
    lines = [f"  + {_describe(key, count, after)}" for key, count in gained[:_MOST_KINDS]]
    lines += [f"  - {_describe(key, count, before)}" for key, count in lost[:_MOST_KINDS]]
    return [head, *lines]


def _more(counts: Mapping[str, int], other: Mapping[str, int]) -> list[tuple[str, int]]:
    """The kinds whose count is higher, by `_rank`, then the largest difference first."""
    more = [(key, count - other.get(key, 0)) for key, count in counts.items() if count > other.get(key, 0)]
    return sorted(more, key=lambda entry: (_rank(entry[0]), -entry[1], entry[0]))


def _rank(key: str) -> int:
    """Loops, calls and matrix products before their parts; parameters and tuples last."""
    opcode = key.split(maxsplit=1)[0]
    if opcode in ("while", "custom-call", "fusion", "dot", "convolution", "call", "conditional", "sort", "scatter"):
        return 0
    if opcode in ("parameter", "tuple", "get-tuple-element", "constant", "bitcast"):
        return 2
    return 1


def _describe(key: str, count: int, program: Program) -> str:
    if key.endswith(")"):
        kind, _, shape = key.partition(" (")
        shape = f"({shape}"
    else:
        kind, _, shape = key.rpartition(" ")
    if len(shape) > _LONGEST_SHAPE:
        shape = f"{shape[: _LONGEST_SHAPE - 3]}..."
    where = program.lines.get(key)
    text = f"{count} {kind} {shape}"
    if where is None:
        return text
    return f"{text}  ({where})"


def _distance(before: Program, after: Program) -> int:
    keys = {*before.compiled, *after.compiled}
    return sum(abs(before.compiled.get(key, 0) - after.compiled.get(key, 0)) for key in keys)
