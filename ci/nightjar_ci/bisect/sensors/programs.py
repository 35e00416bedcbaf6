"""The programs that one run of a test compiled, counted: JAX's traced modules, XLA's optimized ones, and their memory.

In: the folder that XLA dumped to (`dump_flags`). Out: a `Program` by name. Nothing in it depends on how fast the
machine is. Programs of one name are counted together. The difference between two rungs is put in words: instructions
gained and lost, with their Python lines.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import Field

from nightjar_ci.bisect.sensors.hlo_text import Instruction, read_instructions
from nightjar_ci.formats.documents import StrictModel
from nightjar_ci.untrusted.files import read_untrusted

_DUMPED = re.compile(
    r"module_\d+\.(?P<program>.+?)\.(?:(?P<traced>before_optimizations)"
    r"|(?:cpu|gpu|sm_[\w.]+?)_(?:gpu_)?after_optimizations(?P<bytes>-memory-usage-report)?)\.txt"
)
_BYTES = re.compile(r"^Total bytes(?: used)?: (\d+)", re.MULTILINE)
_MOST_PROGRAMS = 5
_MOST_KINDS = 4  # of instructions, gained and lost, for each program
_LONGEST_SHAPE = 60
_MOST_LINES = 400  # of one program, kept to name the Python line of an instruction

Stage = Literal["traced", "compiled"]


class Program(StrictModel):
    """One program.

    Attributes:
        traced: instructions that JAX handed to XLA, by kind and shape.
        compiled: instructions of the optimized module, by kind and shape.
        allocated_bytes: by XLA's buffers; None if it does not say.
        lines: names and Python lines of compiled instructions by kind and shape, at most 400 entries.
    """

    traced: dict[str, int] = Field(default_factory=dict)
    compiled: dict[str, int] = Field(default_factory=dict)
    allocated_bytes: int | None = None
    lines: dict[str, str] = Field(default_factory=dict)

    def is_like(self, other: Program) -> bool:
        """Whether both are the same, apart from source lines."""
        return (self.traced, self.compiled, self.allocated_bytes) == (
            other.traced,
            other.compiled,
            other.allocated_bytes,
        )


Programs = Mapping[str, Program]


def dump_flags(folder: str) -> str:
    """The flags for `XLA_FLAGS` that make XLA dump its programs into a folder, whose name may have spaces."""
    return f"--xla_dump_to='{folder}' --xla_dump_hlo_as_text"


def read_programs(folder: Path) -> dict[str, Program]:
    """The programs that were dumped; none if the test compiled nothing with XLA."""
    traced: dict[str, Counter[str]] = {}
    compiled: dict[str, Counter[str]] = {}
    allocated: dict[str, int] = {}
    lines: dict[str, dict[str, str]] = {}
    for path in sorted(folder.glob("*.txt")):
        match = _DUMPED.fullmatch(path.name)
        text = _read(folder, path.name) if match else None
        if match is None or text is None:
            continue
        name = match["program"]
        if match["bytes"]:
            if total := _BYTES.search(text):
                allocated[name] = allocated.get(name, 0) + int(total[1])
            continue
        instructions = read_instructions(text)
        into = traced if match["traced"] else compiled
        into.setdefault(name, Counter()).update(map(_key, instructions))
        if not match["traced"]:
            kept = lines.setdefault(name, {})
            for instruction in instructions[:_MOST_LINES]:
                if instruction.line is not None:
                    kept.setdefault(_key(instruction), f"{instruction.name} at {instruction.line}")
    return {
        name: Program(
            traced=dict(traced.get(name, {})),
            compiled=dict(counts),
            allocated_bytes=allocated.get(name),
            lines=lines.get(name, {}),
        )
        for name, counts in compiled.items()
    }


def digest_programs(programs: Programs) -> str:
    plain = {name: program.model_dump(mode="json", exclude={"lines"}) for name, program in programs.items()}
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def _key(instruction: Instruction) -> str:
    return f"{instruction.kind} {instruction.shape}"


def _read(folder: Path, name: str) -> str | None:
    try:
        return read_untrusted(folder, name).decode("utf-8", errors="replace")
    except OSError:
        return None


def compare_programs(before: Programs, after: Programs) -> list[str]:
    """The differences, a line for each program and each kind of instruction; empty if a side has no programs."""
    if not before or not after:
        return []
    both = before.keys() & after.keys()
    changed = [name for name in {**before, **after} if name not in both or not before[name].is_like(after[name])]
    if not changed:
        return [f"Both sides compile the same {len(after)} programs."]
    changed.sort(key=lambda name: -_distance(before.get(name, Program()), after.get(name, Program())))
    lines = ["JAX hands other programs to XLA:"]
    traced, traced_after = ({name: program.traced for name, program in side.items()} for side in (before, after))
    if traced == traced_after:
        lines = ["JAX hands the same programs to XLA on both sides; XLA compiles them to others:"]
    for name in changed[:_MOST_PROGRAMS]:
        lines += _compare(name, before.get(name), after.get(name))
    if len(changed) > _MOST_PROGRAMS:
        lines.append(f"and {len(changed) - _MOST_PROGRAMS} more programs")
    return lines


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
