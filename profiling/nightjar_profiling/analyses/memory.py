"""Peak memory of programs and the Python lines that allocated it.

In: the table `buffers` (XLA's buffer assignment) and the instructions. Out: bytes by program, and by buffer with the
stack that created it. Parameters have no stack; they have the name that JAX gave the argument.
"""

from __future__ import annotations

import polars as pl

from nightjar_profiling.capture_folder.tables import Tables

INSTRUCTION = ["program_id", "instruction"]


def summarise_memory(tables: Tables) -> pl.DataFrame:
    """Peak memory of every program with a recorded buffer assignment, largest first.

    Returns:
        Columns: `program_id`, `name`, `peak_bytes`, and its parts `parameter_bytes`, `constant_bytes`,
        `output_bytes`, `temp_bytes`.
    """
    kinds = ("parameter", "constant", "output", "temp")
    size = pl.col("size_bytes")
    sums = tables.buffers.group_by("program_id").agg(
        size.sum().alias("peak_bytes"),
        *(size.filter(pl.col("kind") == kind).sum().alias(f"{kind}_bytes") for kind in kinds),
    )
    names = tables.programs.select("program_id", "name").unique("program_id")
    return (
        sums.join(names, on="program_id", how="left")
        .select("program_id", "name", "peak_bytes", *(f"{kind}_bytes" for kind in kinds))
        .sort("peak_bytes", "program_id", descending=[True, False])
    )


def attribute_buffers(tables: Tables) -> pl.DataFrame:
    """Every buffer that is live at the peak, with the stack that created it, largest first.

    Returns:
        Columns: `program_id`, `instruction` (null: not of a single value), `kind`, `size_bytes`, `op_name` (of a
        parameter: the name of the argument), `frame_id` (null: no stack; join it with `frames`).
    """
    instructions = tables.instructions.select("program_id", "op_name", "frame_id", instruction=pl.col("name"))
    ran = (
        tables.attribution.filter(pl.col("root_weight") > 0)
        .select(*INSTRUCTION, ran_frame="frame_id")
        .unique(INSTRUCTION, keep="first", maintain_order=True)
    )
    return (
        tables.buffers.join(instructions, on=INSTRUCTION, how="left")
        .join(ran, on=INSTRUCTION, how="left")
        .with_columns(frame_id=pl.coalesce("frame_id", "ran_frame"))
        .select(*INSTRUCTION, "kind", "size_bytes", "op_name", "frame_id")
        .sort("size_bytes", descending=True, maintain_order=True)
    )
