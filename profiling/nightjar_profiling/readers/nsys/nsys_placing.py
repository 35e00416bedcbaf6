"""Instructions of CUDA graph nodes that were created before nsys began to collect.

In: the table `ops` of an export, and the programs. XLA records a command buffer in the first runs of a program. If
collection begins later, no event says which thunk created a node, and the launch only names the command buffer. Out:
the same ops with the instructions that `xplane_graphs` finds by kernel name, node id and schedule.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from nightjar_profiling.hlo.hlo import Program
from nightjar_profiling.readers.raw import Placing, merge_placings
from nightjar_profiling.readers.xplane.xplane_graphs import place_nodes
from nightjar_profiling.readers.xplane.xplane_ops import KINDS, Ops
from nightjar_profiling.readers.xplane.xplane_values import Integers, Texts, unknown

COMMAND_BUFFER = r"^command_buffer(?:[._]\d+)?$"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedTable:
    """The table `ops` with the instructions of its nodes."""

    ops: pl.DataFrame
    placed: Mapping[int, Mapping[str, Placing]]  # by program, how each instruction was found
    unmatched: int  # nodes without an instruction
    unmatched_ns: int  # their device time


def place_table(ops: pl.DataFrame, programs: Mapping[int, Program]) -> PlacedTable:
    """Finds the instructions of nodes that name only their command buffer."""
    unnamed = pl.col("graph_node").is_not_null() & pl.col("instruction").str.contains(COMMAND_BUFFER)
    unnamed_nodes = ops.filter(unnamed).select("rank", "device", "program_id").unique().drop_nulls("program_id")
    needed = {n: programs[n] for n in unnamed_nodes["program_id"].unique().to_list() if n in programs}
    if not needed:
        return PlacedTable(ops=ops, placed={}, unmatched=0, unmatched_ns=0)
    instructions = ops["instruction"].to_list()
    placed: list[tuple[int, Mapping[str, Placing]]] = []
    unmatched_rows: list[int] = []
    with_rows = ops.with_row_index("row").filter(pl.col("program_id").is_in(list(needed)))
    for part in with_rows.partition_by("rank", "device", maintain_order=True):
        result = place_nodes(_make_ops(part), needed)
        rows = part["row"].to_numpy()
        instruction = result.ops.instruction
        for row, code in zip(rows.tolist(), instruction.codes.tolist(), strict=True):
            instructions[row] = instruction.names[code] if code >= 0 else None
        placed += result.placed.items()
        unmatched_rows += rows[result.open].tolist()
    return PlacedTable(
        ops=ops.with_columns(instruction=pl.Series(instructions, dtype=pl.String)),
        placed=merge_placings(placed),
        unmatched=len(unmatched_rows),
        unmatched_ns=int(ops["duration_ns"][unmatched_rows].sum()),
    )


def _make_ops(table: pl.DataFrame) -> Ops:
    node = _integers(table["graph_node"])
    return Ops(
        device=table["device"].to_numpy(),
        program=_integers(table["program_id"]),
        run=_integers(table["execution"]),
        instruction=_texts(table["instruction"]),
        stream=_texts(table["stream"]),
        kernel=_texts(table["kernel"]),
        kind=Texts(codes=table["kind"].replace_strict(KINDS, list(range(len(KINDS)))).to_numpy(), names=KINDS),
        start_ns=table["start_ns"].to_numpy(),
        duration_ns=table["duration_ns"].to_numpy(),
        uncertain=unknown(table.height),
        correlation=_integers(table["correlation_id"]),
        graph=Integers(values=node.values >> 32, known=node.known),
        graph_node=node,
        bytes=_integers(table["bytes"]),
        launch_ns=_integers(table["launch_ns"]),
    )


def _integers(column: pl.Series) -> Integers:
    return Integers(values=column.fill_null(0).to_numpy(), known=column.is_not_null().to_numpy())


def _texts(column: pl.Series) -> Texts:
    names = column.unique().drop_nulls().sort()
    codes = column.replace_strict(names, np.arange(len(names)), default=None, return_dtype=pl.Int64)
    return Texts(codes=codes.fill_null(-1).to_numpy(), names=names.to_list())
