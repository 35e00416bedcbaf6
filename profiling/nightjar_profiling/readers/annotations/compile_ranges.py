"""Compile ranges of XLA, its thread pool included.

In: host ranges with their titles and parents. Out: rows of the table `compile`: all ranges below an `XlaCompile` range.
XLA compiles in parallel on the threads of a pool, and the outermost ranges there have no parent. Their parent is the
innermost range of a compiling thread that was open for their whole duration. Ranges of other libraries (NCCL, cuBLAS)
are left out; their time counts for the XLA range around them.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl

from nightjar_profiling.capture_folder.tables import SCHEMAS, fill_table, make_table
from nightjar_profiling.errors import InputError
from nightjar_profiling.readers.annotations.nesting import find_parents
from nightjar_profiling.readers.annotations.xla_ranges import XlaRanges, find_nearest, take
from nightjar_profiling.readers.annotations.xla_titles import Titles
from nightjar_profiling.readers.projection import NONE, Ints, find_inner

ROOT = "XlaCompile:"


def make_compile(ranges: pl.DataFrame, titles: Titles, parent: Ints, xla: XlaRanges) -> pl.DataFrame:
    """Makes the table `compile`."""
    is_root = titles.distinct.str.starts_with(ROOT).fill_null(value=False).to_numpy()[titles.rows]
    if not is_root.any():
        return make_table("compile", ())
    is_xla = titles.distinct.str.contains("^(?:Xla|Thunk:)").fill_null(value=False).to_numpy()[titles.rows]
    around = np.where(parent >= 0, find_nearest(parent, is_xla)[parent], NONE)  # skips ranges of other libraries
    around = np.where(is_xla, around, NONE)
    start, end = ranges["start_ns"].to_numpy(), ranges["end_ns"].to_numpy()
    threads = ranges["thread"].to_numpy()
    compiles = find_nearest(around, is_root) >= 0
    around = attach_pool_ranges(is_xla & (around < 0) & ~is_root, is_root, compiles, around, threads, start, end)
    keep = (find_nearest(around, compiles) >= 0) & is_xla
    rows = np.flatnonzero(keep)
    names_program = xla.fields["compiled"].is_not_null().to_numpy()[xla.rows[:-1]]
    named_rows = find_nearest(around, names_program)[rows]
    return fill_compile(
        ranges,
        rows,
        around,
        end - start,
        name=titles.distinct.gather(titles.rows[rows]),
        program=xla.gather("compiled", named_rows),
        program_id=xla.gather("program_id", named_rows),
    )


def fill_compile(ranges: pl.DataFrame, rows: Ints, around: Ints, duration: Ints, **columns: pl.Series) -> pl.DataFrame:
    """The table `compile` of these rows of the ranges, which lie in the rows `around`."""
    thread, range_ids = ranges["thread"].to_numpy(), ranges["range_id"]
    inside = np.zeros(len(around), np.int64)  # of children on the same thread
    children = rows[around[rows] >= 0]
    children = children[thread[children] == thread[around[children]]]
    np.add.at(inside, around[children], duration[children])
    return fill_table(
        "compile",
        len(rows),
        rank=ranges["rank"].gather(rows),
        thread=thread[rows],
        range_id=range_ids.gather(rows),
        parent_id=take(range_ids, around[rows]),
        start_ns=ranges["start_ns"].gather(rows),
        duration_ns=duration[rows],
        self_ns=(duration - inside)[rows],
        **columns,
    )


def attach_pool_ranges(
    is_outermost: np.ndarray,
    is_root: np.ndarray,
    compiles: np.ndarray,
    around: Ints,
    threads: Ints,
    start: Ints,
    end: Ints,
) -> Ints:
    """Fills in the parents of the outermost ranges of pool threads."""
    workers = np.flatnonzero(is_outermost)
    attached = around.copy()
    shortest = np.full(len(around), np.iinfo(np.int64).max)
    for thread in np.unique(threads[is_root]):
        open_rows = np.flatnonzero(compiles & (threads == thread))
        open_rows = open_rows[np.lexsort((-end[open_rows], start[open_rows]))]
        position = np.full(len(around) + 1, NONE)
        position[open_rows] = np.arange(len(open_rows))
        parents = position[around[open_rows]]  # -1 reads the last element, which is -1
        others = workers[threads[workers] != thread]
        inner = find_inner(start[open_rows], end[open_rows], parents, start[others], end[others])
        inside = inner >= 0
        others, rows = others[inside], open_rows[inner[inside]]
        duration = end[rows] - start[rows]
        better = duration < shortest[others]
        attached[others[better]] = rows[better]
        shortest[others[better]] = duration[better]
    return attached


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
    """The table `compile` as JAX reports spans to `jax.monitoring` and a capture writes them; empty without the file.

    JAX reports the name of the function only, so the program id is null. The spans show the program's waits; they mark
    no executions as warm-up. Source: jax-ml/jax:jax/_src/dispatch.py (`LogElapsedTimeContextManager`).
    """
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
