"""Tracing, lowering and compile times as JAX reports them.

In: the lines that a capture writes next to a trace (`rank0000.compile.jsonl`), one per span that JAX reports to
`jax.monitoring`: phase, function, thread, start and duration in ns, and the line of the program's own code. Out: the
table `compile`. A span within another span of its thread is its child, as when a jitted function is traced inside
another.

The program id is null, because JAX reports the name of the function only. The spans show the program's waits; they do
not mark executions as warm-up.

Source: jax-ml/jax:jax/_src/dispatch.py (`LogElapsedTimeContextManager`)
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl

from nightjar_profiling.capture_folder.tables import SCHEMAS, fill_table, make_table
from nightjar_profiling.errors import InputError
from nightjar_profiling.readers.annotations.nesting import find_parents

PHASES = {
    "jaxpr_trace_duration": "trace to a jaxpr",
    "jaxpr_to_mlir_module_duration": "lower to StableHLO",
    "backend_compile_duration": "compile by XLA",
    "cache_retrieval_time_sec": "read from the compilation cache",
}
COLUMNS = {
    **{"name": pl.String, "program": pl.String, "thread": pl.Int64, "start_ns": pl.Int64, "duration_ns": pl.Int64},
    "called_at": pl.String,
}


def read_compile_events(path: Path, rank: int) -> pl.DataFrame:
    """Reads the table `compile`; empty if there is no such file."""
    if not path.is_file():
        return make_table("compile", ())
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        rows = [[*row, ""] if len(row) < len(COLUMNS) else row for row in rows]  # of earlier releases
        spans = pl.DataFrame(rows, schema=COLUMNS, orient="row")
    except (ValueError, TypeError, pl.exceptions.PolarsError) as error:
        raise InputError(f"{path}: not a valid file of compile times: {error}.", "capture again") from None
    spans = spans.with_columns(end=pl.col("start_ns") + pl.col("duration_ns")).sort(
        "thread", "start_ns", "end", descending=[False, False, True]
    )
    parents = find_parents(*(spans[name].to_numpy() for name in ("thread", "start_ns", "end")))
    durations = spans["duration_ns"].to_numpy()
    inside = np.bincount(parents + 1, weights=durations, minlength=len(durations) + 1)[1:].astype(np.int64)
    return fill_table(
        "compile",
        spans.height,
        rank=rank,
        thread=spans["thread"],
        range_id=np.arange(spans.height),
        parent_id=pl.Series(parents, dtype=pl.Int64).replace(-1, None),
        name=spans["name"].replace(PHASES),
        program=spans["program"].str.replace(r"^jit\((.*)\)$", "$1"),  # JAX's name of the lowered function
        start_ns=spans["start_ns"],
        duration_ns=spans["duration_ns"],
        self_ns=durations - inside,
        called_at=spans["called_at"].replace("", None),
    ).select(list(SCHEMAS["compile"]))
