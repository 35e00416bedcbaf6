"""Host ranges of an nsys-jax archive.

In: `report_nvtx_pushpop_trace.parquet` or `.csv.xz` of one process. Out: the tables `compile` and `ranges`, the latter
with device times if the projection uses the same range ids (layout A).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import polars as pl

from nightjar_profiling.bytes.xz import read_csv
from nightjar_profiling.capture_folder.tables import SCHEMAS, UNREADABLE
from nightjar_profiling.errors import InputError
from nightjar_profiling.readers.annotations.compile_ranges import make_compile
from nightjar_profiling.readers.annotations.nesting import find_named_parents
from nightjar_profiling.readers.annotations.xla_ranges import read_xla_ranges, take
from nightjar_profiling.readers.annotations.xla_titles import DOMAIN, collect_titles
from nightjar_profiling.readers.projection import look_up

LARGEST_BYTES = 8 << 30
NEEDED = ("Start (ns)", "Duration (ns)", "Name", "TID", "RangeId", "ParentId")
XLA = "^(?:Xla|Thunk:)"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRanges:
    """The tables `compile` and `ranges`, the latter without device times."""

    compile: pl.DataFrame
    ranges: pl.DataFrame

    def project(self, projected: pl.DataFrame) -> pl.DataFrame:
        """Makes the table `ranges` with device times.

        Args:
            projected: `range_id`, `start_ns`, `duration_ns`, `launch_ns`, `n_ops` of the projection.
        """
        times = {"device_start_ns": "start_ns", "device_duration_ns": "duration_ns", "n_ops": "n_ops"}
        if projected["launch_ns"].null_count() == projected.height:  # other range ids
            projected = projected.clear()
        rows = look_up(projected["range_id"].to_numpy(), self.ranges["range_id"].to_numpy())
        joined = self.ranges.with_columns(**{name: take(projected[source], rows) for name, source in times.items()})
        return joined.select(pl.col(name).cast(kind) for name, kind in SCHEMAS["ranges"].items())


def read_host_ranges(data: bytes, where: str) -> HostRanges:
    """Reads the host ranges, with rank 0."""
    table = _read(data, where)
    names = collect_titles(table["Name"])
    parts = names.distinct.str.splitn(":", 2).struct.rename_fields(["domain", "name"]).struct.unnest()
    is_xla = (parts["domain"] == DOMAIN) & parts["name"].str.contains(XLA)
    titles = replace(names, distinct=parts.select(pl.when(is_xla).then("name")).to_series())
    ranges = table.select(
        domain=names.of_ranges(parts["domain"]),
        name=names.of_ranges(parts["name"]),
        rank=pl.lit(0, pl.Int64),
        thread=pl.col("TID").cast(pl.Int64),
        range_id=pl.col("RangeId").cast(pl.Int64),
        parent_id=pl.col("ParentId").cast(pl.Int64),
        start_ns=pl.col("Start (ns)").cast(pl.Int64),
        duration_ns=pl.col("Duration (ns)").cast(pl.Int64),
    ).with_columns(end_ns=pl.col("start_ns") + pl.col("duration_ns"))
    parents = find_named_parents(ranges["range_id"], ranges["parent_id"], where)
    xla = read_xla_ranges(titles, parents)
    return HostRanges(compile=make_compile(ranges, titles, parents, xla), ranges=ranges)


def _read(data: bytes, where: str) -> pl.DataFrame:
    try:
        if data.startswith(b"PAR1"):
            stored = pl.read_parquet_schema(data)
            table = pl.read_parquet(data, columns=[n for n in stored if n in NEEDED or n.startswith("__index")])
        else:
            names = pl.Categorical(pl.Categories.random())  # few are distinct
            columns = {name: names if name == "Name" else pl.Int64() for name in NEEDED}
            table = read_csv(data, where, LARGEST_BYTES, columns)
    except UNREADABLE as error:
        raise InputError(f"{where}: cannot be read ({len(data)} bytes): {error}.") from None
    if "RangeId" not in table.columns and table.columns[-1].startswith("__index"):
        table = table.rename({table.columns[-1]: "RangeId"})
    missing = [name for name in NEEDED if name not in table.columns]
    if missing:
        raise InputError(f"{where}: no columns {missing}; found {table.columns}.")
    return table.drop_nulls([name for name in NEEDED if name not in ("Name", "ParentId")])  # nulls: a truncated line
