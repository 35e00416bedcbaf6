"""Overlap of communication with computation.

In: ops and the collectives among them. Out: for each op that communicates, how long the same device also computed
during it (`hidden_ns`); the remainder is exposed. A device computes while any op that is not communication runs on it,
of any program and stream. Time in which several ops compute counts once, so hidden time never exceeds the duration of
the op. Concurrent communication does not hide communication.

Source: NVIDIA/JAX-Toolbox:.github/container/nsys_jax/nsys_jax/data_loaders.py (`_calculate_overlap`), which sums the
overlaps with each compute thunk of the same program, and so counts concurrent thunks twice.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from nightjar_profiling.analyses.gaps import measure_busy
from nightjar_profiling.analyses.intervals import merge_intervals
from nightjar_profiling.capture_folder.tables import Tables

NCCL_KERNELS = ("ncclKernel", "ncclDevKernel", "void ncclKernel", "void ncclDevKernel")
DEVICE = ("rank", "device")


def mark_communication(ops: pl.DataFrame, collectives: pl.DataFrame) -> pl.Series:
    """Whether each op communicates: its instruction is a collective, or its kernel is one of NCCL's."""
    key = ["program_id", "instruction"]
    instructions = collectives.select(key).drop_nulls().unique()
    named = (
        ops.select(key).with_row_index("row").filter(pl.col("instruction").is_in(instructions["instruction"].implode()))
    )
    communicates = ops.select(pl.any_horizontal(pl.col("kernel").str.starts_with(name) for name in NCCL_KERNELS))
    marks = communicates.to_series().fill_null(value=False).to_numpy(writable=True)
    marks[named.join(instructions, on=key, how="semi")["row"]] = True  # faster than a join of all ops
    return pl.Series("communicates", marks)


def fill_hidden(ops: pl.DataFrame, collectives: pl.DataFrame) -> pl.DataFrame:
    """The ops with `hidden_ns`: 0 or more for communication, null for all others."""
    communicates = mark_communication(ops, collectives)
    if not communicates.any():
        return ops.with_columns(hidden_ns=pl.lit(None, pl.Int64))
    sends, starts = communicates.to_numpy(), ops["start_ns"].to_numpy()
    ends = starts + ops["duration_ns"].to_numpy()
    hidden = np.zeros(len(ops), np.int64)
    for rows in ops.select(*DEVICE).with_row_index("row").group_by(DEVICE).agg("row")["row"]:
        device_rows = rows.to_numpy()
        sent, busy = device_rows[sends[device_rows]], device_rows[~sends[device_rows]]
        if len(sent):
            hidden[sent] = merge_intervals(starts[busy], ends[busy]).covered(starts[sent], ends[sent])
    return ops.with_columns(hidden_ns=pl.when(communicates).then(pl.Series(hidden)))


def sum_communication(tables: Tables) -> pl.DataFrame:
    """Communication time of each device, and how much of it is hidden.

    Returns:
        Columns: `rank`, `device`, `communication_ns` (sum over the ops that communicate), `hidden_ns`.
    """
    ops = tables.ops.select(*DEVICE, "duration_ns", "hidden_ns")
    if ops["hidden_ns"].null_count() == ops.height:  # no op communicates, or the column is not filled yet
        ops = ops.with_columns(fill_hidden(tables.ops, tables.collectives)["hidden_ns"])
    communicates = pl.col("hidden_ns").is_not_null()
    return ops.group_by(DEVICE).agg(
        communication_ns=pl.col("duration_ns").filter(communicates).sum(), hidden_ns=pl.col("hidden_ns").sum()
    )


def find_exposed(tables: Tables) -> pl.DataFrame:
    """Intervals in which a device communicates and does not compute.

    Returns:
        Columns: `rank`, `device`, `start_ns`, `duration_ns`: disjoint, sorted by rank, device and time.
    """
    parts = [pl.DataFrame(schema={**dict.fromkeys(DEVICE, pl.Int64), "start_ns": pl.Int64, "duration_ns": pl.Int64})]
    marked = tables.ops.select(*DEVICE, "start_ns", "duration_ns", mark_communication(tables.ops, tables.collectives))
    for (rank, device), ops in marked.filter(pl.col("communicates").any().over(DEVICE)).group_by(DEVICE):
        covers = []
        for group in (ops.filter("communicates"), ops.filter(~pl.col("communicates"))):
            starts = group["start_ns"].to_numpy()
            covers.append(merge_intervals(starts, starts + group["duration_ns"].to_numpy()))
        exposed = covers[0].without(covers[1])
        spans = {"start_ns": exposed.starts, "duration_ns": exposed.ends - exposed.starts}
        parts.append(
            pl.DataFrame(spans).select(
                rank=pl.lit(rank), device=pl.lit(device), start_ns="start_ns", duration_ns="duration_ns"
            )
        )
    return pl.concat(parts, how="vertical_relaxed").sort(*DEVICE, "start_ns")


def summarise_overlap(tables: Tables) -> pl.DataFrame:
    """Communication and computation time of each device.

    Returns:
        Columns: `rank`, `device`, `compute_ns` (time during which any op computes), `communication_ns` (sum over the
        ops that communicate), `hidden_ns`, `exposed_ns`, `hidden_fraction` (null without communication).
    """
    computing = tables.ops.filter(~mark_communication(tables.ops, tables.collectives))
    compute = measure_busy(computing).select(*DEVICE, compute_ns="busy_ns")
    total = pl.col("communication_ns")
    return (
        sum_communication(tables)
        .join(compute, on=DEVICE, how="left")
        .select(
            *DEVICE,
            pl.col("compute_ns").fill_null(0),
            "communication_ns",
            "hidden_ns",
            exposed_ns=total - pl.col("hidden_ns"),
            hidden_fraction=pl.when(total > 0).then(pl.col("hidden_ns") / total),
        )
        .sort(DEVICE)
    )
