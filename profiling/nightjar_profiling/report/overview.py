"""The key figures of a capture.

In: tables. Out: an `Overview`. A device is busy while at least one op runs on it, on any stream, and idle otherwise
between its first op and its last. Communication is the sum of its ops; exposed is the part during which the device
computed nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from nightjar_profiling.analyses.communication.overlap import sum_communication
from nightjar_profiling.analyses.gaps import measure_busy
from nightjar_profiling.analyses.roofline import count_runs
from nightjar_profiling.analyses.steps import summarise_programs
from nightjar_profiling.capture_folder.tables import Tables

MOST_KERNELS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramRow:
    """A compiled program, with the durations of its executions on one device."""

    name: str
    device_time_ns: int
    executions: int
    mean_ns: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRow:
    """A kernel or op by name."""

    name: str
    device_time_ns: int
    launches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """The key figures; times are sums over all devices."""

    ops: int
    devices: int
    ranks: int
    span_ns: int
    busy_ns: int
    communication_ns: int
    exposed_ns: int
    programs: tuple[ProgramRow, ...]
    kernels: tuple[KernelRow, ...]

    @property
    def idle_fraction(self) -> float:
        """Fraction of the devices' time in which no op ran."""
        if not self.span_ns:
            return 0.0
        return 1 - self.busy_ns / self.span_ns


def list_kernels(tables: Tables) -> tuple[KernelRow, ...]:
    """The kernels and ops with the most time, by name."""
    rows = (
        tables.ops.group_by(pl.coalesce("kernel", "instruction").fill_null("unnamed").alias("name"))
        .agg(device_time_ns=pl.col("duration_ns").sum(), launches=count_runs().cast(pl.Int64))
        .sort("device_time_ns", "name", descending=[True, False])
        .head(MOST_KERNELS)
    )
    return tuple(KernelRow(**row) for row in rows.iter_rows(named=True))


def make_overview(tables: Tables) -> Overview:
    """The key figures of a capture."""
    devices, overlap = measure_busy(tables.ops), sum_communication(tables)
    return Overview(
        ops=tables.ops.height,
        devices=devices.height,
        ranks=devices["rank"].n_unique(),
        span_ns=int(devices["span_ns"].sum()),
        busy_ns=int(devices["busy_ns"].sum()),
        communication_ns=int(overlap["communication_ns"].sum()),
        exposed_ns=int((overlap["communication_ns"] - overlap["hidden_ns"]).sum()),
        programs=tuple(
            ProgramRow(
                name=row["name"] or "no program",
                device_time_ns=row["device_ns"],
                executions=row["executions"] or 0,
                mean_ns=None if row["duration_ns_mean"] is None else round(row["duration_ns_mean"]),
            )
            for row in summarise_programs(tables).iter_rows(named=True)
        ),
        kernels=list_kernels(tables),
    )
