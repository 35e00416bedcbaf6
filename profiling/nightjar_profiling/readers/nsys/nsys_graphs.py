"""Under which host range was a node of a CUDA graph made?

In: the node events of an nsys export, its CUDA calls and the ops that ran as nodes. Out: for each such op the range in
which its node was first made. XLA records a command buffer thunk by thunk, so that this range names the instruction of
the node, where the launch only names the graph. A clone (by instantiation) leads to the node that it was made from.

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
DEEPEST = 64  # clones of clones; more are a circle


def read_node_events(tables: NsysTables) -> pl.DataFrame:
    """The events at which nodes were made or cloned; empty where graphs are not traced by node."""
    name = next((name for name in TABLES if name in tables), TABLES[0])
    return tables.read(name, COLUMNS).drop_nulls(["start", "globalTid", "graphNodeId"]).sort("start")


def find_origins(events: pl.DataFrame, process: Ints, node: Ints) -> Ints:
    """Row number of the event that first made the node of each op, or -1.

    Args:
        events: as `read_node_events` gives them.
        process: of each op.
        node: of each op.
    """
    made = events.with_row_index("event").with_columns(process=pl.col("globalTid").and_(pl.lit(PROCESS)))
    made = made.unique(["process", "graphNodeId"], keep="first")
    at = pl.DataFrame({"process": process, "graphNodeId": node, "origin": np.full(len(node), NONE)})
    for _ in range(DEEPEST):
        step = at.join(made, on=["process", "graphNodeId"], how="left", maintain_order="left")
        original = pl.col("originalGraphNodeId")
        onward = original.is_not_null() & (original != 0) & (original != pl.col("graphNodeId"))
        at = step.select(
            "process",
            pl.when(onward).then(original).otherwise("graphNodeId").alias("graphNodeId"),
            origin=pl.coalesce(pl.col("event").cast(pl.Int64), "origin"),
        )
        if not step.select(onward.any()).item():
            break
    origin: Ints = at["origin"].to_numpy()
    return origin


def find_ranges_of_events(events: pl.DataFrame, calls: pl.DataFrame, ranges: pl.DataFrame, parent: Ints) -> Ints:
    """The innermost range around each event: around the last call that began before it on its thread.

    Args:
        events: as `read_node_events` gives them.
        calls: `start`, `globalTid`.
        ranges: nested ones, by start: `start_ns`, `end_ns`, `global_tid`.
        parent: row number of the range around each.
    """
    call = calls.select("globalTid", at="start", start="start").sort("start")
    asked = events.select("globalTid", "start").with_row_index("event")
    time = asked.join_asof(call, on="start", by="globalTid", check_sortedness=False)
    time = time.with_columns(pl.coalesce("at", "start").alias("at"))
    found = np.full(events.height, NONE)
    threads = ranges["global_tid"].to_numpy()
    for (thread,), group in time.group_by("globalTid"):
        rows = np.flatnonzero(threads == thread)
        place = np.full(len(threads) + 1, NONE)
        place[rows] = np.arange(len(rows))
        at = group["at"].to_numpy()
        starts, ends = (ranges[name].to_numpy()[rows] for name in ("start_ns", "end_ns"))
        inner = find_inner(starts, ends, place[parent[rows]], at, at)
        found[group["event"].to_numpy()] = np.where(inner >= 0, rows[inner], NONE) if len(rows) else NONE
    return found
