"""Host ranges in which the nodes of CUDA graphs were created.

In: the node events of an nsys export, its CUDA calls and the ops that ran as nodes. Out: for each such op the range in
which its node was created. XLA records a command buffer thunk by thunk, so this range names the instruction of the
node, whereas the launch only names the graph. A clone (by instantiation) is followed back to its original node.

Source: NVIDIA Nsight Systems User Guide, SQLite schema reference (CUDA_GRAPH_NODE_EVENTS; CUDA_GRAPH_EVENTS to 2023)
"""

from __future__ import annotations

import numpy as np
import polars as pl

from nightjar_profiling.readers.nsys.nsys_nvtx import PROCESS
from nightjar_profiling.readers.nsys.nsys_tables import NsysTables
from nightjar_profiling.readers.projection import NONE, Ints, find_inner

TABLES = ("CUDA_GRAPH_NODE_EVENTS", "CUDA_GRAPH_EVENTS")
COLUMNS = dict.fromkeys(("start", "globalTid", "graphNodeId", "originalGraphNodeId"), pl.Int64)
DEEPEST = 64  # clones of clones; more is a cycle


def read_node_events(tables: NsysTables) -> pl.DataFrame:
    """Reads the events that create or clone nodes; empty if graphs are not traced by node."""
    name = next((name for name in TABLES if name in tables), TABLES[0])
    return tables.read(name, COLUMNS).drop_nulls(["start", "globalTid", "graphNodeId"]).sort("start")


def find_origins(events: pl.DataFrame, process: Ints, node: Ints) -> Ints:
    """Finds the row of the event that created the node of each op, or -1."""
    created = events.with_row_index("event").with_columns(process=pl.col("globalTid").and_(pl.lit(PROCESS)))
    created = created.unique(["process", "graphNodeId"], keep="first")
    nodes = pl.DataFrame({"process": process, "graphNodeId": node, "origin": np.full(len(node), NONE)})
    for _ in range(DEEPEST):
        step = nodes.join(created, on=["process", "graphNodeId"], how="left", maintain_order="left")
        original = pl.col("originalGraphNodeId")
        is_clone = original.is_not_null() & (original != 0) & (original != pl.col("graphNodeId"))
        nodes = step.select(
            "process",
            pl.when(is_clone).then(original).otherwise("graphNodeId").alias("graphNodeId"),
            origin=pl.coalesce(pl.col("event").cast(pl.Int64), "origin"),
        )
        if not step.select(is_clone.any()).item():
            break
    origin: Ints = nodes["origin"].to_numpy()
    return origin


def find_ranges_of_events(events: pl.DataFrame, calls: pl.DataFrame, ranges: pl.DataFrame, parent: Ints) -> Ints:
    """Finds the innermost range around each event: around the last call that began before it on its thread.

    Args:
        events: from `read_node_events`.
        calls: `start`, `globalTid`.
        ranges: nested ranges, by start: `start_ns`, `end_ns`, `global_tid`.
        parent: row of the parent of each range.
    """
    call_starts = calls.select("globalTid", at="start", start="start").sort("start")
    numbered = events.select("globalTid", "start").with_row_index("event")
    timed = numbered.join_asof(call_starts, on="start", by="globalTid", check_sortedness=False)
    timed = timed.with_columns(pl.coalesce("at", "start").alias("at"))
    range_rows = np.full(events.height, NONE)
    threads = ranges["global_tid"].to_numpy()
    for (thread,), group in timed.group_by("globalTid"):
        rows = np.flatnonzero(threads == thread)
        if not len(rows):
            continue
        position = np.full(len(threads) + 1, NONE)
        position[rows] = np.arange(len(rows))
        times = group["at"].to_numpy()
        starts, ends = (ranges[name].to_numpy()[rows] for name in ("start_ns", "end_ns"))
        inner = find_inner(starts, ends, position[parent[rows]], times, times)
        range_rows[group["event"].to_numpy()] = np.where(inner >= 0, rows[inner], NONE)
    return range_rows
