"""Kernels of an XSpace's GPU with their launch configurations.

In: a GPU's plane. Out: the table `kernels`, from the text that XLA's profiler records of each launch.

Source: openxla/xla:xla/backends/profiler/gpu/cupti_utils.cc (`kernel_details`)
"""

from __future__ import annotations

import re

import numpy as np
import polars as pl

from nightjar_profiling.capture_folder.tables import fill_table
from nightjar_profiling.readers.kernels import summarise_kernels
from nightjar_profiling.readers.xplane.xplane_host import decode
from nightjar_profiling.readers.xplane.xplane_planes import Plane

DETAILS = "kernel_details"
FIELD = re.compile(r"(\w+):(\S+)")
COLUMNS = {
    "code": pl.Int64,
    "grid": pl.String,
    "block": pl.String,
    "registers": pl.Int64,
    "shared_bytes": pl.Int64,
    "occupancy": pl.Float64,
}


def read_kernels(plane: Plane, device: int, rank: int) -> pl.DataFrame:
    """Reads the table `kernels` of one GPU."""
    if DETAILS not in plane.stat_names.values():
        return fill_table("kernels", 0)
    decoded = decode(plane, (DETAILS,), [line for line in plane.lines if line.name.startswith("Stream #")])
    details = decoded.texts(DETAILS)
    described = np.flatnonzero(details.codes >= 0)
    shapes = [read_details(code, text) for code, text in enumerate(details.names)]
    names = decoded.names
    launches = pl.DataFrame(
        {
            "code": details.codes[described].astype(np.int64),
            "kernel": pl.Series([*names.names, None], dtype=pl.String).gather(names.codes[described].astype(np.uint32)),
            "duration_ns": decoded.duration_ns[described],
        }
    )
    rows = launches.join(pl.DataFrame(shapes, schema=COLUMNS, orient="row"), on="code", how="left")
    return summarise_kernels(rows.with_columns(rank=pl.lit(rank), device=pl.lit(device)))


def read_details(code: int, text: str) -> tuple[int, str | None, str | None, int | None, int | None, float | None]:
    """A launch configuration as a row of COLUMNS.

    >>> read_details(0, "regs:32 static_shared:1056 dynamic_shared:0 grid:64,1,1 block:128,1,1 occ_pct:100")
    (0, '64,1,1', '128,1,1', 32, 1056, 1.0)
    """
    fields = dict(FIELD.findall(text))
    registers = _number(fields.get("regs"))
    shared = [_number(fields.get(name)) for name in ("static_shared", "dynamic_shared")]
    percent = _number(fields.get("occ_pct"))
    return (
        code,
        fields.get("grid"),
        fields.get("block"),
        None if registers is None else int(registers),
        None if None in shared else int(sum(size or 0 for size in shared)),
        None if percent is None else percent / 100,
    )


def _number(text: str | None) -> float | None:
    try:
        return float(text or "")
    except ValueError:
        return None
