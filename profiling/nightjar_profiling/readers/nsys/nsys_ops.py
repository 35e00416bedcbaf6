"""GPU ops and CUDA calls of an nsys export.

In: the tables of the export. Out: a frame of kernels, copies and fills, and a frame of the host's CUDA calls. A CUDA
graph that was traced as a whole is one op of kind `graph`.

Source: NVIDIA Nsight Systems User Guide, SQLite schema reference (CUPTI_ACTIVITY_KIND_*)
"""

from __future__ import annotations

import polars as pl

from nightjar_profiling.readers.nsys.nsys_tables import NsysTables

KINDS = {
    "kernel": "CUPTI_ACTIVITY_KIND_KERNEL",
    "memcpy": "CUPTI_ACTIVITY_KIND_MEMCPY",
    "memset": "CUPTI_ACTIVITY_KIND_MEMSET",
    "graph": "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
}
CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"
COPIES = {1: "Host-to-Device", 2: "Device-to-Host", 8: "Device-to-Device", 10: "Peer-to-Peer"}
NUMBERS = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid", "graphNodeId", "bytes", "copyKind")
TIMES = ("start", "end")
LAUNCHED = ("correlationId", "globalPid")
COLUMNS = dict.fromkeys((*NUMBERS, "shortName", "demangledName"), pl.Int64)


def read_ops(tables: NsysTables, strings: pl.DataFrame) -> pl.DataFrame:
    """Reads all ops that ran on a device.

    Returns:
        Columns: `start_ns`, `end_ns`, `device`, `stream`, `correlation_id`, `process`, `graph_node`, `bytes`, `kind`,
        `kernel`; in table order.
    """
    kinds = [_with_kernel(kind, tables.read(table, COLUMNS), tables, strings) for kind, table in KINDS.items()]
    return pl.concat(kinds).select(
        start_ns="start",
        end_ns="end",
        device=pl.col("deviceId").fill_null(0),
        stream=pl.col("streamId").cast(pl.String),
        correlation_id="correlationId",
        process=pl.col("globalPid").fill_null(0),
        graph_node=pl.when(pl.col("graphNodeId") != 0).then("graphNodeId"),
        bytes="bytes",
        kind="kind",
        kernel="kernel",
    )


def _with_kernel(kind: str, ops: pl.DataFrame, tables: NsysTables, strings: pl.DataFrame) -> pl.DataFrame:
    if kind == "kernel":
        ops = ops.with_columns(id=pl.coalesce("shortName", "demangledName"))
        ops = ops.join(strings.rename({"value": "kernel"}), on="id", how="left", maintain_order="left").drop("id")
    elif kind == "memcpy":
        names = tables.read("ENUM_CUDA_MEMCPY_OPER", {"id": pl.Int64, "label": pl.String})
        labels = COPIES | dict(names.drop_nulls().iter_rows())
        label = pl.col("copyKind").replace_strict(labels, default="of an unknown kind", return_dtype=pl.String)
        ops = ops.with_columns(kernel=pl.lit("memcpy ") + label)
    elif kind == "memset":
        ops = ops.with_columns(kernel=pl.lit("memset"))
    else:
        ops = ops.with_columns(kernel=pl.lit("CUDA graph"))
    return ops.with_columns(pl.col("kernel").fill_null("unnamed kernel"), kind=pl.lit(kind))


def read_calls(tables: NsysTables) -> pl.DataFrame:
    """Reads the host's CUDA calls: `start`, `end`, `globalTid`, `correlationId`; rows with a null are left out."""
    return tables.read(CALLS, dict.fromkeys(("start", "end", "globalTid", "correlationId"), pl.Int64)).drop_nulls()
