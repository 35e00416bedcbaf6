"""NVTX ranges of the host.

In: the tables of an nsys export. Out: a frame of NVTX ranges by start: the name (plain text or a registered string),
the domain, and the end, which is the end of the trace if the range was still open.

Source: NVIDIA Nsight Systems User Guide, SQLite schema reference (NVTX_EVENTS, ENUM_NSYS_EVENT_TYPE)
"""

from __future__ import annotations

import numpy as np
import polars as pl

from nightjar_profiling.readers.nsys.nsys_tables import NsysTables
from nightjar_profiling.readers.projection import NONE, Ints, find_inner

STRINGS = "StringIds"
RANGES = (59, 60, 70, 71)  # push/pop, start/end; the same two as imported from nvtxt
DOMAIN_CREATED = (75,)
PROCESS = ~0xFFFFFF  # of a globalTid: vm << 48 | pid << 24 | tid
PID = 0xFFFFFF
COLUMNS: dict[str, type[pl.DataType]] = {
    "start": pl.Int64,
    "end": pl.Int64,
    "eventType": pl.Int64,
    "text": pl.String,
    "textId": pl.Int64,
    "globalTid": pl.Int64,
    "endGlobalTid": pl.Int64,
    "domainId": pl.Int64,
}


def read_strings(tables: NsysTables) -> pl.DataFrame:
    """Reads `StringIds`: `id`, `value`."""
    return tables.read(STRINGS, {"id": pl.Int64, "value": pl.String})


def read_nvtx(tables: NsysTables, strings: pl.DataFrame, latest_ns: int) -> pl.DataFrame:
    """Reads the ranges by start, the longest first.

    Args:
        latest_ns: end of a range that was still open when the trace ended, unless it began later.

    Returns:
        Columns: `start_ns`, `end_ns`, `global_tid`, `nested` (whether it began and ended on one thread), `domain` (null
        for the default one), `name`, `closed`.
    """
    events = tables.read("NVTX_EVENTS", COLUMNS, RANGES)
    domains = tables.read("NVTX_EVENTS", COLUMNS, DOMAIN_CREATED)
    process = pl.col("globalTid").and_(pl.lit(PROCESS)).alias("process")
    domain_names = (
        _with_name(domains, strings).select(process, "domainId", domain="name").unique(["process", "domainId"])
    )
    events = _with_name(events, strings).with_columns(process)
    if not domain_names.is_empty():
        events = events.join(domain_names, on=["process", "domainId"], how="left", maintain_order="left")
    else:
        events = events.with_columns(domain=pl.lit(None, pl.String))
    end = pl.coalesce("end", pl.max_horizontal(pl.lit(latest_ns), "start"))
    return events.select(
        start_ns="start",
        end_ns=end,
        global_tid="globalTid",
        nested=pl.col("endGlobalTid").is_null() | (pl.col("endGlobalTid") == pl.col("globalTid")),
        domain="domain",
        name=pl.col("name").fill_null(""),
        closed=pl.col("end").is_not_null(),
    ).sort("start_ns", "end_ns", descending=[False, True], maintain_order=True)


def _with_name(events: pl.DataFrame, strings: pl.DataFrame) -> pl.DataFrame:
    if events["textId"].null_count() == events.height:
        return events.with_columns(name="text")
    registered = strings.rename({"id": "textId", "value": "registered"})
    joined = events.join(registered, on="textId", how="left", maintain_order="left")
    return joined.with_columns(name=pl.coalesce("text", "registered"))


TABLES = ("CUDA_GRAPH_NODE_EVENTS", "CUDA_GRAPH_EVENTS")
NODE_COLUMNS = dict.fromkeys(("start", "globalTid", "graphNodeId", "originalGraphNodeId"), pl.Int64)
DEEPEST = 64  # clones of clones; more is a cycle


def read_node_events(tables: NsysTables) -> pl.DataFrame:
    """Reads the events that create or clone nodes; empty if graphs are not traced by node."""
    name = next((name for name in TABLES if name in tables), TABLES[0])
    return tables.read(name, NODE_COLUMNS).drop_nulls(["start", "globalTid", "graphNodeId"]).sort("start")


def find_origins(events: pl.DataFrame, process: Ints, node: Ints) -> Ints:
    """Finds the row of the event that created the node of each op, or -1; a clone is followed back to its original.

    XLA records a command buffer thunk by thunk, so the range around that event names the node's instruction, but the
    launch only names the graph.
    """
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
