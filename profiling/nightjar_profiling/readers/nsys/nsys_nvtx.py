"""NVTX ranges of the host.

In: the tables of an nsys export. Out: a frame of NVTX ranges by start: the name (plain text or a registered string),
the domain, and the end, which is the end of the trace if the range was still open.

Source: NVIDIA Nsight Systems User Guide, SQLite schema reference (NVTX_EVENTS, ENUM_NSYS_EVENT_TYPE)
"""

from __future__ import annotations

import polars as pl

from nightjar_profiling.readers.nsys.nsys_tables import NsysTables

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
