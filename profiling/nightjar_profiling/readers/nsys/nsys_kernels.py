"""GPU ops and CUDA calls of an nsys export, and its kernels with their launch configurations.

In: the tables of the export, and the rank of each process. Out: ops (a CUDA graph that was traced as a whole is one of
kind `graph`), the host's calls, and the table `kernels`, with the occupancy if the export describes the device.

Source: NVIDIA Nsight Systems User Guide, SQLite schema reference (CUPTI_ACTIVITY_KIND_*, TARGET_INFO_GPU)
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from nightjar_profiling.errors import InputError
from nightjar_profiling.readers.kernels import RESERVED_SHARED_BYTES, Multiprocessor, find_occupancy, summarise_kernels
from nightjar_profiling.readers.nsys.nsys_tables import NsysTables

NUMBERS = ("start", "end", "deviceId", "globalPid", "demangledName", "shortName", "registersPerThread")
GRID, BLOCK = ("gridX", "gridY", "gridZ"), ("blockX", "blockY", "blockZ")
SHARED = ("staticSharedMemory", "dynamicSharedMemory")
GPU_LIMITS = ("id", "maxWarpsPerSm", "maxBlocksPerSm", "maxRegistersPerSm", "maxShmemPerSm", "computeMajor")
RESERVES_SHARED_MEMORY = 8  # compute capability


def read_kernels(tables: NsysTables, strings: pl.DataFrame, ranks: Mapping[int, int]) -> pl.DataFrame:
    """Reads the table `kernels`."""
    names = (*NUMBERS, *GRID, *BLOCK, *SHARED)
    rows = tables.read(KINDS["kernel"], dict.fromkeys(names, pl.Int64)).drop_nulls(["start", "end"])
    rows = (
        rows.join(strings.rename({"id": "demangledName", "value": "full"}), on="demangledName", how="left")
        .join(strings.rename({"id": "shortName", "value": "short"}), on="shortName", how="left")
        .with_columns(
            rank=pl.col("globalPid").fill_null(0).replace_strict(dict(ranks), default=None, return_dtype=pl.Int64),
            device=pl.col("deviceId").fill_null(0),
            kernel=pl.coalesce("full", "short", pl.lit("unnamed kernel")),
            duration_ns=pl.col("end") - pl.col("start"),
            grid=_join_sizes(GRID),
            block=_join_sizes(BLOCK),
            registers="registersPerThread",
            shared_bytes=pl.sum_horizontal(SHARED, ignore_nulls=False),
            block_threads=pl.col(BLOCK[0]) * pl.col(BLOCK[1]) * pl.col(BLOCK[2]),
        )
    )
    return summarise_kernels(_add_occupancy(rows, tables))


def _join_sizes(columns: tuple[str, ...]) -> pl.Expr:
    """`128,1,1` of three columns; null if one is."""
    return pl.concat_str([pl.col(name).cast(pl.String) for name in columns], separator=",")


def _read_limits(tables: NsysTables) -> dict[int, tuple[Multiprocessor, int]]:
    """The limits and the compute capability of each device; empty if the export lacks or damages them."""
    try:
        rows = tables.read("TARGET_INFO_GPU", dict.fromkeys(GPU_LIMITS, pl.Int64)).drop_nulls()
    except InputError:  # the reader of the device names warns
        return {}
    return {
        device: (Multiprocessor(warps=warps, blocks=blocks, registers=registers, shared_bytes=shared), major)
        for device, warps, blocks, registers, shared, major in rows.iter_rows()
        if warps > 0
    }


def _add_occupancy(rows: pl.DataFrame, tables: NsysTables) -> pl.DataFrame:
    limits = _read_limits(tables)
    key = ("device", "block_threads", "registers", "shared_bytes")
    shapes = rows.select(key).unique().drop_nulls()
    shares = []
    for device, threads, registers, shared in shapes.iter_rows():
        share = None
        if device in limits:
            multiprocessor, major = limits[device]
            if major >= RESERVES_SHARED_MEMORY:
                reserved = RESERVED_SHARED_BYTES
            else:
                reserved = 0
            share = find_occupancy(threads, registers, shared, multiprocessor, reserved)
        shares.append(share)
    return rows.join(shapes.with_columns(occupancy=pl.Series(shares, dtype=pl.Float64)), on=key, how="left")


KINDS = {
    "kernel": "CUPTI_ACTIVITY_KIND_KERNEL",
    "memcpy": "CUPTI_ACTIVITY_KIND_MEMCPY",
    "memset": "CUPTI_ACTIVITY_KIND_MEMSET",
    "graph": "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
}
CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"
COPIES = {1: "Host-to-Device", 2: "Device-to-Host", 8: "Device-to-Device", 10: "Peer-to-Peer"}
OP_NUMBERS = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid", "graphNodeId", "bytes", "copyKind")
TIMES = ("start", "end")
LAUNCHED = ("correlationId", "globalPid")
COLUMNS = dict.fromkeys((*OP_NUMBERS, "shortName", "demangledName"), pl.Int64)


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
