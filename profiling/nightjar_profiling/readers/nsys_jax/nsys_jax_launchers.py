"""Which device did a thread launch its work on?

In: the names of the threads, and the threads that launched. Out: rank and local device of each. XLA names the threads
that launch for one device each (`XlaLauncher:#global=4,local=0,process=1,slice=0#`; `partition` since 2025). A process
with one device launches from its main thread, which has no such name: what it launches ran on the process's first
device. So does a program that only one unnamed thread launched, and what the autotuner times.

Source: openxla/xla:xla/pjrt/gpu/se_gpu_pjrt_client.cc, openxla/xla#29725
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

LAUNCHER = r"^XlaLauncher:#global=\d+,local=(?<device>\d+),process=(?<rank>\d+),(?:partition|slice)=\d+#$"


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """`of_thread` has the columns PID, TID, device; `first` is the device of all other threads."""

    rank: int
    first: int
    of_thread: pl.DataFrame


def find_devices(threads: pl.DataFrame | None, ranges: pl.DataFrame, rank: int) -> Devices:
    """Rank of the process and device of each thread.

    Args:
        threads: `Name`, `PID`, `TID`; None where the archive has none.
        ranges: with the columns `PID`, `TID`, whose processes are meant.
        rank: where the threads do not tell.
    """
    empty = pl.DataFrame(schema={"PID": pl.Int64, "TID": pl.Int64, "device": pl.Int64})
    if threads is None or not {"Name", "PID", "TID"} <= set(threads.columns):
        return Devices(rank=rank, first=0, of_thread=empty)
    mine = threads.filter(pl.col("PID").is_in(ranges["PID"].unique().implode()))
    named = mine.with_columns(pl.col("Name").str.extract_groups(LAUNCHER)).unnest("Name").drop_nulls("device")
    named = named.select("PID", "TID", pl.col("device", "rank").cast(pl.Int64)).unique(["PID", "TID"])
    if named.is_empty():
        return Devices(rank=rank, first=0, of_thread=empty)
    first = named.sort("rank", "device").row(0, named=True)
    return Devices(rank=first["rank"], first=first["device"], of_thread=named.drop("rank"))
