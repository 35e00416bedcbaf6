"""Idle gaps of the devices and their causes.

In: ops. Out: the intervals between a device's first and last op in which nothing ran on it, and the launch latency of
the ops. The cause of a gap is `launch` if the host launched the next op after the gap began: the device had nothing to
do. It is `queue` if the op was launched earlier: it waited for another stream, or for the launch itself. Without launch
times the cause is null.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from nightjar_profiling.analyses.intervals import merge_intervals
from nightjar_profiling.capture_folder.tables import Tables

DEVICE = ["rank", "device"]
BUSY = {"rank": pl.Int64, "device": pl.Int64, "span_ns": pl.Int64, "busy_ns": pl.Int64}
GAPS = {
    **dict.fromkeys(("rank", "device", "start_ns", "duration_ns"), pl.Int64),
    **{"cause": pl.String, "program_id": pl.Int64, "instruction": pl.String, "kernel": pl.String},
}


def find_gaps(tables: Tables, shortest_ns: int = 0) -> pl.DataFrame:
    """The idle gaps of every device.

    Returns:
        Columns: `rank`, `device`, `start_ns`, `duration_ns`, `cause` (`launch`, `queue` or null), and `program_id`,
        `instruction` and `kernel` of the op that ends the gap. Longest first.
    """
    parts = [pl.DataFrame(schema={"row": pl.UInt32, "gap_start_ns": pl.Int64, "gap_ns": pl.Int64})]
    spans = tables.ops.select(*DEVICE, "start_ns", "duration_ns").with_row_index("row")
    for _, ops in spans.group_by(DEVICE):
        ops = ops.sort("start_ns")
        starts = ops["start_ns"].to_numpy()
        cover = merge_intervals(starts, starts + ops["duration_ns"].to_numpy())
        gap_starts, gap_ends = cover.ends[:-1], cover.starts[1:]
        keep = (gap_ends - gap_starts) >= max(shortest_ns, 1)
        parts.append(
            pl.DataFrame(
                {
                    "row": ops["row"].gather(np.searchsorted(starts, gap_ends[keep], side="left")),
                    "gap_start_ns": gap_starts[keep],
                    "gap_ns": (gap_ends - gap_starts)[keep],
                }
            )
        )
    gaps = pl.concat(parts)
    cause = pl.when(pl.col("launch_ns") >= pl.col("gap_start_ns")).then(pl.lit("launch"))
    ending = tables.ops.select(*DEVICE, "launch_ns", "program_id", "instruction", "kernel")
    return (
        pl.concat([ending[gaps["row"]], gaps], how="horizontal")
        .with_columns(cause=cause.when(pl.col("launch_ns").is_not_null()).then(pl.lit("queue")))
        .rename({"gap_start_ns": "start_ns", "gap_ns": "duration_ns"})
        .select(list(GAPS))
        .sort("duration_ns", "rank", "device", "start_ns", descending=[True, False, False, False])
    )


def measure_busy(ops: pl.DataFrame) -> pl.DataFrame:
    """How long every device was busy, from its first op to its last.

    Returns:
        Columns: `rank`, `device`, `span_ns`, `busy_ns` (time during which an op ran).
    """
    rows = []
    for (rank, device), spans in ops.select(*DEVICE, "start_ns", "duration_ns").group_by(DEVICE):
        starts = spans["start_ns"].to_numpy()
        cover = merge_intervals(starts, starts + spans["duration_ns"].to_numpy())
        rows.append((rank, device, int(cover.ends[-1] - cover.starts[0]), cover.total_ns))
    return pl.DataFrame(rows, schema=BUSY, orient="row").sort(DEVICE)


def summarise_devices(tables: Tables) -> pl.DataFrame:
    """How busy every device was, from its first op to its last.

    Returns:
        Columns: `rank`, `device`, `span_ns`, `busy_ns` (time during which an op ran), `idle_ns`, `busy_fraction` (null
        for an empty span), `launch_gap_ns` and `queue_gap_ns` (parts of `idle_ns`; null without launch times), and
        `launch_latency_ns_p50`, `_p90`, `_max`: from a launch to the start of its first op (a CUDA graph launches
        several), null without launch times.
    """
    first = pl.col("start_ns") == pl.col("start_ns").min().over(*DEVICE, "correlation_id")
    waited = (pl.col("start_ns") - pl.col("launch_ns")).filter(first | pl.col("correlation_id").is_null())
    latency = tables.ops.group_by(DEVICE).agg(
        launch_latency_ns_p50=waited.median(),
        launch_latency_ns_p90=waited.quantile(0.9),
        launch_latency_ns_max=waited.max(),
    )
    timed = tables.ops.group_by(DEVICE).agg(timed=pl.col("launch_ns").is_not_null().any())
    causes = (
        find_gaps(tables)
        .group_by(DEVICE)
        .agg(
            launch_gap_ns=pl.col("duration_ns").filter(pl.col("cause") == "launch").sum(),
            queue_gap_ns=pl.col("duration_ns").filter(pl.col("cause") == "queue").sum(),
        )
    )
    gaps = ("launch_gap_ns", "queue_gap_ns")
    return (
        measure_busy(tables.ops)
        .join(causes, on=DEVICE, how="left")
        .join(timed, on=DEVICE, how="left")
        .join(latency, on=DEVICE, how="left")
        .with_columns(
            *(pl.when("timed").then(pl.col(name).fill_null(0)).alias(name) for name in gaps),
            idle_ns=pl.col("span_ns") - pl.col("busy_ns"),
            busy_fraction=pl.when(pl.col("span_ns") > 0).then(pl.col("busy_ns") / pl.col("span_ns")),
        )
        .select(*BUSY, "idle_ns", "busy_fraction", *gaps, pl.col("^launch_latency_.*$"))
        .sort(DEVICE)
    )
