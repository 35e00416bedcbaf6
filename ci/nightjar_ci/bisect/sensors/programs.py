"""The programs that one run of a test compiled, counted: JAX's traced modules, XLA's optimized ones, and their memory.

In: the folder that XLA dumped to (`dump_flags`). Out: a `Program` by name. Nothing in it depends on how fast the
machine is. Programs of one name are counted together.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from nightjar_ci.bisect.sensors.hlo_text import Instruction, read_instructions
from nightjar_ci.untrusted.files import read_untrusted

_DUMPED = re.compile(
    r"module_\d+\.(?P<program>.+?)\.(?:(?P<traced>before_optimizations)"
    r"|(?:cpu|gpu|sm_[\w.]+?)_(?:gpu_)?after_optimizations(?P<bytes>-memory-usage-report)?)\.txt"
)
_BYTES = re.compile(r"^Total bytes(?: used)?: (\d+)", re.MULTILINE)
_MOST_LINES = 400  # of one program, kept to name the Python line of an instruction

Stage = Literal["traced", "compiled"]


class Program(BaseModel):
    """One program.

    Attributes:
        traced: instructions that JAX handed to XLA, by kind and shape.
        compiled: instructions of the optimized module, by kind and shape.
        allocated_bytes: by XLA's buffers; None if it does not say.
        lines: names and Python lines of compiled instructions by kind and shape, at most 400 entries.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    traced: dict[str, int] = {}
    compiled: dict[str, int] = {}
    allocated_bytes: int | None = None
    lines: dict[str, str] = {}

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
    """A digest that is equal for two runs that compiled the same."""
    plain = {name: program.model_dump(mode="json", exclude={"lines"}) for name, program in programs.items()}
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def is_traced_alike(first: Programs, second: Programs) -> bool:
    """Whether JAX handed the same programs to XLA."""
    return {name: program.traced for name, program in first.items()} == {
        name: program.traced for name, program in second.items()
    }


def _key(instruction: Instruction) -> str:
    return f"{instruction.kind} {instruction.shape}"


def _read(folder: Path, name: str) -> str | None:
    try:
        return read_untrusted(folder, name).decode("utf-8", errors="replace")
    except OSError:
        return None
