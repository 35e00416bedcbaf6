"""Achieved rates of instructions compared with the roofline of the device.

In: ops, the flops and bytes of their instructions, and the peak of the device. Out: achieved rates and the fraction of
the roofline: an instruction with i flops per byte can reach at most min(peak flops/s, i * peak bytes/s). Peaks come
from `peaks.toml`, which names its sources; a CPU has none. Without a peak, fractions are null. Flops are XLA's count,
which leaves out transcendental functions.

Source: S. Williams, A. Waterman, D. Patterson, Roofline, CACM 52(4), 2009
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import polars as pl

from nightjar_profiling.capture_folder.tables import Tables

INSTRUCTION = ["program_id", "instruction"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """Peak rates of a device; `source` names the data sheet."""

    name: str
    bytes_per_s: float
    flops_per_s: Mapping[str, float]
    source: str


def find_peak(device_kind: str | None) -> Peak | None:
    """The peak of a device, by its JAX `device_kind`; None if `peaks.toml` does not list it.

    >>> find_peak("NVIDIA H100 80GB HBM3").bytes_per_s
    3350000000000.0
    >>> find_peak("cpu") is None
    True
    """
    table = tomllib.loads(files("nightjar_profiling.analyses").joinpath("peaks.toml").read_text())
    for device in table["device"]:
        if device_kind is not None and device_kind in device["names"]:
            rates = {"bytes_per_s": device["bytes_per_s"], "flops_per_s": device["flops_per_s"]}
            return Peak(name=device_kind, source=device["source"], **rates)
    return None


def read_peak(environment: Mapping[str, Any]) -> Peak | None:
    """The peak of a capture's devices."""
    return find_peak(next(iter(environment.get("devices", [])), None))


def measure_roofline(tables: Tables, peak: Peak | None, element: str = "bf16") -> pl.DataFrame:
    """Rates of every instruction that ran, largest device time first.

    Args:
        peak: of its devices; None if unknown.
        element: operand type whose peak applies: bf16, tf32, f32, ...; without a peak for it, fractions are null.

    Returns:
        Columns: `program_id`, `instruction`, `count`, `device_ns`, `flops_per_s`, `bytes_per_s`, `flops_per_byte`,
        `bound` (`compute`, `memory`), `roofline_fraction`: achieved rate over the roofline at its intensity. Null if
        the flops, the bytes or the peak are unknown.
    """
    costs = tables.instructions.select("program_id", "flops", "bytes_accessed", instruction=pl.col("name"))
    sums = (
        tables.ops.filter(pl.col("instruction").is_not_null())
        .group_by(INSTRUCTION)
        .agg(
            count=count_runs(),
            device_ns=pl.col("duration_ns").sum(),
        )
        .join(costs, on=INSTRUCTION, how="left")
    )
    seconds = pl.when(pl.col("device_ns") > 0).then(pl.col("device_ns") / 1e9)
    rates = sums.with_columns(
        flops_per_s=pl.col("flops") * pl.col("count") / seconds,
        bytes_per_s=pl.col("bytes_accessed") * pl.col("count") / seconds,
        flops_per_byte=pl.when(pl.col("bytes_accessed") > 0).then(pl.col("flops") / pl.col("bytes_accessed")),
    )
    if peak is not None:
        top = peak.flops_per_s.get(element)
    else:
        top = None
    if peak is None or top is None:
        bounds = {"bound": pl.lit(None, pl.String), "roofline_fraction": pl.lit(None, pl.Float64)}
    else:
        at_memory = pl.col("flops_per_byte") * peak.bytes_per_s < top
        reached = (
            pl.when(at_memory).then(pl.col("bytes_per_s") / peak.bytes_per_s).otherwise(pl.col("flops_per_s") / top)
        )
        bounds = {
            "bound": pl.when(at_memory).then(pl.lit("memory")).when(~at_memory).then(pl.lit("compute")),
            "roofline_fraction": pl.when(pl.col("flops_per_byte").is_not_null()).then(reached),
        }
    return (
        rates.with_columns(**bounds)
        .select(*INSTRUCTION, "count", "device_ns", "flops_per_s", "bytes_per_s", "flops_per_byte", *bounds)
        .sort("device_ns", *INSTRUCTION, descending=[True, False, False])
    )


def count_runs() -> pl.Expr:
    """Number of runs of an instruction, from its ops: kernels of one thunk count as one run, if the thunk is known."""
    runs = pl.struct("rank", "thunk").n_unique()
    return pl.when(pl.col("thunk").is_null().any()).then(pl.len()).otherwise(runs).cast(pl.Int64)
