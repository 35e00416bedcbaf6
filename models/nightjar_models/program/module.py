"""A compiled module: the instructions that run in one step, how often, and their Python lines.

In: an `Hlo` message (`hlo.py`). Out: a `Module`: its instructions by id, and the computations that are dispatched
instruction by instruction (entry, loop bodies, branches) with their number of runs in one step. Instructions inside a
fusion or a reduction are not dispatched.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

FREE = frozenset(
    (
        *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id", "replica-id"),
        *("opt-barrier", "add-dependency", "while", "conditional", "call", "async-start", "async-update", "async-done"),
    )
)
DISPATCHING = frozenset(("while", "conditional", "call", "async-start"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of Python; `function` as the traceback names it."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{PurePath(self.file).name}:{self.line} {self.function}".rstrip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A compiled module.

    Attributes:
        proto: the `Hlo` message.
        instructions: by id.
        computations: by id.
        order: of each dispatched computation the ids of its instructions, as scheduled.
        runs: how often each dispatched computation runs in one step; an unknown trip count counts as one.
        unknown_loops: names of loops whose trip count the compiler does not know.
    """

    proto: Any
    instructions: Mapping[int, Any]
    computations: Mapping[int, Any]
    order: Mapping[int, tuple[int, ...]]
    runs: Mapping[int, int]
    unknown_loops: tuple[str, ...]

    @property
    def entry(self) -> int:
        """The id of the entry computation."""
        return int(self.proto.hlo_module.entry_computation_id)

    def executed(self) -> Iterator[tuple[Any, int]]:
        """Every instruction that is dispatched, with its number of runs in one step, in the order of the schedule."""
        for computation, runs in self.runs.items():
            for number in self.order[computation]:
                if self.instructions[number].opcode not in FREE:
                    yield self.instructions[number], runs

    def operands(self, instruction: Any) -> list[Any]:
        """The instructions whose results an instruction takes."""
        return [self.instructions[number] for number in instruction.operand_ids]

    def line(self, instruction: Any) -> Line | None:
        """The innermost line of an instruction's stack outside of libraries; a library's if there is no other."""
        index = self.proto.hlo_module.stack_frame_index
        number, library_line = instruction.metadata.stack_frame_id, None
        for _ in range(len(index.stack_frames)):  # a damaged file may contain a cycle
            if not 0 < number <= len(index.stack_frames):
                break
            frame = index.stack_frames[number - 1]
            place = index.file_locations[frame.file_location_id - 1]
            line = Line(
                file=index.file_names[place.file_name_id - 1],
                line=place.line,
                function=index.function_names[place.function_name_id - 1],
            )
            if "site-packages" not in line.file and "dist-packages" not in line.file:
                return line
            library_line = library_line or line
            number = frame.parent_frame_id if frame.parent_frame_id != number else 0
        if library_line is None and instruction.metadata.source_file:
            return Line(file=instruction.metadata.source_file, line=instruction.metadata.source_line, function="")
        return library_line


def read_module(proto: Any) -> Module:
    """Indexes an `Hlo` message."""
    module = proto.hlo_module
    computations = {instruction.id: instruction for instruction in module.computations}
    instructions = {
        instruction.id: instruction for computation in module.computations for instruction in computation.instructions
    }
    sequences = {entry.key: tuple(entry.value.instruction_ids) for entry in module.schedule.sequences}
    runs: dict[int, int] = {}
    order: dict[int, tuple[int, ...]] = {}
    unknown: list[str] = []

    def dispatch(number: int, count: int) -> None:
        runs[number] = runs.get(number, 0) + count
        order[number] = sequences.get(number) or tuple(
            instruction.id for instruction in computations[number].instructions
        )
        for key in order[number]:
            instruction = instructions[key]
            if instruction.opcode not in DISPATCHING:
                continue
            trips: int | None = 1
            if instruction.opcode == "while":
                trips = read_trip_count(instruction)
            if trips is None:
                unknown.append(instruction.name)
            for place, called in enumerate(instruction.called_computation_ids):
                condition = instruction.opcode == "while" and place == 1
                dispatch(called, count * ((trips or 1) + condition))

    dispatch(module.entry_computation_id, 1)
    return Module(
        proto=proto,
        instructions=instructions,
        computations=computations,
        order=order,
        runs=runs,
        unknown_loops=tuple(dict.fromkeys(unknown)),
    )


def read_config(instruction: Any) -> dict[str, Any]:
    """The backend configuration of an instruction (JSON); empty if there is none."""
    try:
        config = json.loads(instruction.backend_config or b"{}")
    except ValueError:
        return {}
    if isinstance(config, dict):
        return config
    return {}


def read_trip_count(loop: Any) -> int | None:
    """How often a loop's body runs; None if the compiler does not know."""
    try:
        return int(read_config(loop)["known_trip_count"]["n"])
    except (LookupError, TypeError, ValueError):
        return None
