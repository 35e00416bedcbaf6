"""Kernels of an nsys export with their launch configurations.

In: the tables of the export, and the rank of each process. Out: the table `kernels`. The occupancy is computed if the
export describes the device (`TARGET_INFO_GPU`).

Source: NVIDIA Nsight Systems User Guide, SQLite schema reference (CUPTI_ACTIVITY_KIND_KERNEL, TARGET_INFO_GPU)
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from nightjar_profiling.errors import InputError
from nightjar_profiling.readers.kernels import RESERVED_SHARED_BYTES, Multiprocessor, find_occupancy, summarise_kernels
from nightjar_profiling.readers.nsys.nsys_ops import KINDS
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
