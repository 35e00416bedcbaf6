"""When did JAX trace, lower and compile, by its own account?

In: the lines that our capture notes beside a trace (`rank0000.compile.jsonl`), one for each span that JAX reports to
`jax.monitoring`: phase, function, thread, start and duration in ns. Out: the table `compile`. A span that lies within
another of its thread is its child: a jitted function that is traced inside another, say.

The program id is null: JAX reports by the name of the function. So the spans tell what one waited for, but do not mark
executions as warm-up.

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
COLUMNS = {"name": pl.String, "program": pl.String, "thread": pl.Int64, "start_ns": pl.Int64, "duration_ns": pl.Int64}


def read_compile_events(path: Path, rank: int) -> pl.DataFrame:
    """The table `compile`; empty where there is no such file.

    Raises:
        InputError: the file is damaged.
    """
    if not path.is_file():
        return make_table("compile", ())
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        spans = pl.DataFrame(rows, schema=COLUMNS, orient="row")
    except (ValueError, TypeError, pl.exceptions.PolarsError) as error:
        raise InputError(f"{path}: not the compile times of a capture: {error}.", "capture again") from None
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
        program=spans["program"].str.replace(r"^jit\((.*)\)$", "$1"),  # as JAX names what it lowers
        start_ns=spans["start_ns"],
        duration_ns=spans["duration_ns"],
        self_ns=durations - inside,
    ).select(list(SCHEMAS["compile"]))
