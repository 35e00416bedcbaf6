"""Compile ranges of the annotations that JAX and XLA write into every trace.

In: the table `ranges` of a trace, and the threads of the compiler's pools. Out: the table `compile`: the ranges below
the compiler call on its thread, and the ranges of the pools during the call. The compile times that a capture records
(tracing, lowering, the compilation cache, also before the trace) replace this table.

XLA writes the module into the names of some ranges, `hlo normalization (jit_f)`; it becomes the column `program` of all
ranges of the same call.

Source: jax-ml/jax:jax/_src/compiler.py (`backend_compile_and_load`), openxla/xla:xla/hlo/pass/hlo_pass_pipeline.cc
"""

from __future__ import annotations

import re
from collections.abc import Collection

import numpy as np
import polars as pl

from nightjar_profiling.capture_folder.tables import fill_table, make_table
from nightjar_profiling.readers.annotations.compile_ranges import attach_pool_ranges
from nightjar_profiling.readers.annotations.xla_ranges import find_nearest, take

ROOT = r"^(?:backend_compile(?:_and_load)?|.*Client::Compile(?:AndLoad)?)$"
POOL = re.compile(r"tf_(?:PjRtCompiler|xla-|XLA_?Compil)", re.IGNORECASE)
MODULE = r"^(.*\S) \(([\w.\-]+)\)$"


def make_compile(ranges: pl.DataFrame, pools: Collection[int]) -> pl.DataFrame:
    """Makes the table `compile`; empty if nothing was compiled during the trace."""
    called = ranges["name"].str.contains(ROOT).fill_null(value=False).to_numpy()
    if not called.any():
        return make_table("compile", ())
    parent = ranges["parent_id"].fill_null(-1).to_numpy()
    root = find_nearest(parent, called)
    outer = np.where(parent >= 0, root[parent], -1)  # compiler call around each compiler call
    is_root, compiles = called & (outer < 0), root >= 0
    thread, start = ranges["thread"].to_numpy(), ranges["start_ns"].to_numpy()
    duration = ranges["duration_ns"].to_numpy()
    in_pool = np.isin(thread, list(pools))
    around = np.where(in_pool | (compiles & ~is_root), parent, -1)
    attached = attach_pool_ranges(in_pool & (parent < 0), is_root, compiles, around, thread, start, start + duration)
    # A call on a pool thread lies in the call that waits for it; of two equally long calls, neither lies in the other.
    around = np.where(is_root & (duration[attached] <= duration), -1, attached)
    root = find_nearest(around, is_root & (around < 0))
    rows = np.flatnonzero(root >= 0)
    inside = np.zeros(len(ranges), np.int64)  # of children on the same thread
    children = rows[around[rows] >= 0]
    children = children[thread[children] == thread[around[children]]]
    np.add.at(inside, around[children], duration[children])
    programs = pl.DataFrame({"root": root[rows], "program": ranges["name"].str.extract(MODULE, 2).gather(rows)})
    call_programs = pl.col("program").drop_nulls().unique().over("root", mapping_strategy="join")
    program = pl.coalesce("program", pl.when(call_programs.list.len() == 1).then(call_programs.list.first()))
    name = pl.coalesce(ranges["name"].str.extract(MODULE, 1), ranges["name"])
    range_ids = ranges["range_id"]
    return fill_table(
        "compile",
        len(rows),
        rank=ranges["rank"].gather(rows),
        thread=thread[rows],
        range_id=range_ids.gather(rows),
        parent_id=take(range_ids, around[rows]),
        name=pl.select(name).to_series().gather(rows),
        program=programs.select(program).to_series(),
        start_ns=start[rows],
        duration_ns=duration[rows],
        self_ns=(duration - inside)[rows],
    )
