"""Samples of a capture, as a sampling profiler would report them.

In: tables. Out: one `Sample` per device, instruction and stack; their times sum to the ops' total, exact to the
nanosecond. A mark, for example that the times are estimates, becomes the outermost frame of every stack.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

from nightjar_profiling.attribution.apportion import DEVICE, INSTRUCTION, apportion_time
from nightjar_profiling.attribution.stacks import Site, StackTree, build_stacks
from nightjar_profiling.capture_folder.tables import Tables

NO_STACK_SITE: Site = ("", 0, "no Python stack")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Device time of an instruction on a device under a stack.

    Attributes:
        path: sites from the outermost frame to the innermost.
        instruction: its name, or the name of the kernel if there is no instruction.
        count: runs of the instruction; 0 except on the first of its samples.
    """

    rank: int
    device: int
    path: tuple[Site, ...]
    instruction: str
    opcode: str
    program: str
    count: int
    duration_ns: int


def find_samples(tables: Tables, mark: str = "") -> Iterator[Sample]:
    """The samples, by device, largest instruction first."""
    tree, outermost = build_stacks(tables), (("", 0, mark),) if mark else ()
    names = tables.programs.select("program_id", pl.col("name").alias("program"))
    opcodes = tables.instructions.select("program_id", pl.col("name").alias("instruction"), "opcode")
    kernels = tables.ops.group_by(*DEVICE, *INSTRUCTION).agg(pl.col("kernel").first())
    keys = [*DEVICE, *INSTRUCTION]
    shares = (
        apportion_time(tables)
        .join(names, on="program_id", how="left")
        .join(opcodes, on=list(INSTRUCTION), how="left")
        .join(kernels, on=keys, how="left", nulls_equal=True)
        .sort(*DEVICE, "duration_ns", *INSTRUCTION, "frame_id", descending=[False, False, True] + 3 * [False])
        .with_columns(first=pl.int_range(pl.len()).over(keys) == 0)
    )
    for row in shares.iter_rows(named=True):
        yield Sample(
            rank=row["rank"],
            device=row["device"],
            path=(*outermost, *_path(tree, row["program_id"], row["frame_id"])),
            instruction=row["instruction"] or row["kernel"] or "unknown op",
            opcode=row["opcode"] or "no instruction",
            program=row["program"] or "no program",
            count=row["count"] if row["first"] else 0,
            duration_ns=row["duration_ns"],
        )


def _path(tree: StackTree, program_id: int | None, frame_id: int | None) -> tuple[Site, ...]:
    path = tree.path(tree.node_of(program_id, frame_id))
    return tuple(tree.places[site] for site in path) or (NO_STACK_SITE,)
