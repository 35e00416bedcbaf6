"""Rank and device of the threads that launch work.

In: the thread names, and the threads that launched. Out: rank and local device of each. XLA has one launching thread
per device and names it (`XlaLauncher:#global=4,local=0,process=1,slice=0#`; `partition` since 2025). A process with one
device launches from its main thread, which has no such name. Work of threads without such a name, the autotuner's
included, counts for the first device of the process.

Source: openxla/xla:xla/pjrt/gpu/se_gpu_pjrt_client.cc, openxla/xla#29725
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

LAUNCHER = r"^XlaLauncher:#global=\d+,local=(?<device>\d+),process=(?<rank>\d+),(?:partition|slice)=\d+#$"


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """Rank of a process and devices of its threads."""

    rank: int
    first: int  # device of all threads that are not in of_thread
    of_thread: pl.DataFrame  # PID, TID, device


def find_devices(threads: pl.DataFrame | None, ranges: pl.DataFrame, rank: int) -> Devices:
    """Finds the rank of a process and the device of each of its threads.

    Args:
        threads: `Name`, `PID`, `TID`; None if the archive has no such table.
        ranges: ranges of the process, with the columns `PID`, `TID`.
    """
    empty = pl.DataFrame(schema={"PID": pl.Int64, "TID": pl.Int64, "device": pl.Int64})
    if threads is None or not {"Name", "PID", "TID"} <= set(threads.columns):
        return Devices(rank=rank, first=0, of_thread=empty)
    local = threads.filter(pl.col("PID").is_in(ranges["PID"].unique().implode()))
    launchers = local.with_columns(pl.col("Name").str.extract_groups(LAUNCHER)).unnest("Name").drop_nulls("device")
    launchers = launchers.select("PID", "TID", pl.col("device", "rank").cast(pl.Int64)).unique(["PID", "TID"])
    if launchers.is_empty():
        return Devices(rank=rank, first=0, of_thread=empty)
    first = launchers.sort("rank", "device").row(0, named=True)
    return Devices(rank=first["rank"], first=first["device"], of_thread=launchers.drop("rank"))
