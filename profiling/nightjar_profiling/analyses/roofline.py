"""How near does each instruction come to what the device can do?

In: ops, the flops and bytes of their instructions, and the peak of the device. Out: achieved rates and the share of the
roofline: an instruction with i flops per byte can reach at most min(peak flops/s, i * peak bytes/s). Peaks come from
`peaks.toml`, which names its sources, or, of a CPU, from a measurement beside the capture; without either, rates are
shown and shares are null. Flops are XLA's count, which leaves out transcendental functions.

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
    """What a device can do at most; `source` says who says so."""

    name: str
    bytes_per_s: float
    flops_per_s: Mapping[str, float]
    source: str


def find_peak(device_kind: str | None) -> Peak | None:
    """The peak of a device by the name that JAX gives it; None where the table lacks it.

    >>> find_peak("NVIDIA H100 80GB HBM3").bytes_per_s
    3350000000000.0
    >>> find_peak("cpu") is None
    True
    """
    table = tomllib.loads(files("nightjar_profiling.analyses").joinpath("peaks.toml").read_text())
    for one in table["device"]:
        if device_kind is not None and device_kind in one["names"]:
            rates = {"bytes_per_s": one["bytes_per_s"], "flops_per_s": one["flops_per_s"]}
            return Peak(name=device_kind, source=one["source"], **rates)
    return None


def read_peak(environment: Mapping[str, Any]) -> Peak | None:
    """The peak of a capture's devices: from the table, else what the capture measured on its CPU; None where neither.

    Args:
        environment: of the manifest.
    """
    kind = next(iter(environment.get("devices", [])), None)
    found, measured = find_peak(kind), environment.get("peak")
    if found is not None or not measured:
        return found
    source = "measured by XLA's own product and sum on that machine, after the trace: what it reaches, not a data sheet"
    return Peak(name=str(kind), source=source, **measured)


def measure_roofline(tables: Tables, peak: Peak | None, element: str = "bf16") -> pl.DataFrame:
    """Rates of every instruction that ran, most time first.

    Args:
        tables: of a capture.
        peak: of its devices; None where unknown.
        element: operand type whose peak counts: bf16, tf32, f32, ...; what the peak lacks is unknown.

    Returns:
        Columns: `program_id`, `instruction`, `count`, `device_ns`, `flops_per_s`, `bytes_per_s`, `flops_per_byte`,
        `bound` (`compute`, `memory`), `roofline_fraction`: achieved of what its intensity allows. Null where flops or
        bytes or the peak are not known.
    """
    known = tables.instructions.select("program_id", "flops", "bytes_accessed", instruction=pl.col("name"))
    sums = (
        tables.ops.filter(pl.col("instruction").is_not_null())
        .group_by(INSTRUCTION)
        .agg(
            count=count_runs(),
            device_ns=pl.col("duration_ns").sum(),
        )
        .join(known, on=INSTRUCTION, how="left")
    )
    seconds = pl.when(pl.col("device_ns") > 0).then(pl.col("device_ns") / 1e9)
    rates = sums.with_columns(
        flops_per_s=pl.col("flops") * pl.col("count") / seconds,
        bytes_per_s=pl.col("bytes_accessed") * pl.col("count") / seconds,
        flops_per_byte=pl.when(pl.col("bytes_accessed") > 0).then(pl.col("flops") / pl.col("bytes_accessed")),
    )
    top = None if peak is None else peak.flops_per_s.get(element)
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
    """How often an instruction ran, of its ops: several kernels of one thunk are one run, where the thunk is known."""
    runs = pl.struct("rank", "thunk").n_unique()
    return pl.when(pl.col("thunk").is_null().any()).then(pl.len()).otherwise(runs).cast(pl.Int64)


def summarise_roofline(tables: Tables, peak: Peak | None, element: str = "bf16") -> dict[str, float | str | None]:
    """The whole capture as one point: flops and bytes of all instructions whose cost is known, by their device time."""
    rates = measure_roofline(tables, peak, element).filter(pl.col("flops_per_s").is_not_null())
    ns = float(rates["device_ns"].sum())
    flops = float((rates["flops_per_s"] * rates["device_ns"]).sum())
    total = tables.device_time_ns
    top = None if peak is None else peak.flops_per_s.get(element)
    return {
        "known_fraction": ns / total if total else None,  # of the device time, the part whose flops are known
        "flops_per_s": flops / ns if ns else None,
        "peak_fraction": flops / ns / top if ns and top else None,
        "peak": None if peak is None else peak.name,
        "source": None if peak is None else peak.source,
    }
