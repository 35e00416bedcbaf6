"""The programs of a trace before optimizations.

In: the optimized programs, the instructions that ran, and programs before optimizations. Out: an `Origin` for each
program whose form before is known for certain. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from nightjar_profiling.attribution.merged import Merged, choose_lowered, find_global_shapes, find_merged
from nightjar_profiling.hlo.frames import FrameIndex
from nightjar_profiling.hlo.hlo import Program
from nightjar_profiling.hlo.lowered import Lowered


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """A program, with facts from its form before optimizations.

    Attributes:
        program: with the frames of merged operations besides its own.
        merged: operations that its instructions stand for besides their own.
        whole_shapes: of a partitioned program, shape of the whole array by instruction.
    """

    program: Program
    merged: Sequence[Merged]
    whole_shapes: Mapping[str, str]


def find_origins(
    programs: Mapping[int, Program], ran: Mapping[int, Sequence[str]], lowered: Iterable[Lowered]
) -> dict[int, Origin]:
    """The origins of the programs that ran, by program id."""
    candidates = list(lowered)
    origins = {}
    for number, names in ran.items() if candidates else ():
        if number not in programs:
            continue
        program = programs[number]
        before = choose_lowered(program, candidates)
        if before is None:
            continue
        index = FrameIndex(program.frames)
        merged = find_merged(program, before, names, index)
        shapes = find_global_shapes(program, before, index)
        frames = {**program.frames, **{frame.frame_id: frame for frame in index.added}}
        origins[number] = Origin(program=replace(program, frames=frames), merged=merged, whole_shapes=shapes)
    return origins


def merged_rows(origins: Mapping[int, Origin]) -> list[dict[str, int | str]]:
    """The rows of the table `merged_operations`."""
    return [
        {
            "program_id": number,
            "instruction": merged.instruction,
            "kept_frame_id": merged.kept_frame_id,
            "frame_id": merged.frame_id,
            "operations": merged.operations,
        }
        for number, origin in origins.items()
        for merged in origin.merged
    ]
