"""A warning if recording may have slowed the program.

In: the ops of a capture. Out: a warning if they are so short that recording one takes as long as running it. Measured
on XLA:CPU: no effect above noise for thunks of tens of microseconds; 3.9 times the step time at 2,000 thunks per
millisecond.
"""

from __future__ import annotations

import polars as pl

from nightjar_profiling.capture_folder.tables import Tables

SHORTEST_MEAN_NS = 2_000  # recording an event costs about 1 µs, half of that
FEWEST_OPS = 1_000  # recording fewer costs less than a millisecond in total


def find_overhead(tables: Tables, backend: str) -> list[str]:
    """Warnings about the cost of recording CPU thunks; a GPU records its kernels while others run."""
    thunks = tables.ops.filter(pl.col("kind") == "thunk")
    n_ops, thunk_ns = thunks.height, int(thunks["duration_ns"].sum())
    if backend != "jax" or n_ops < FEWEST_OPS or thunk_ns >= n_ops * SHORTEST_MEAN_NS:
        return []
    mean_us = thunk_ns / n_ops / 1e3
    return [
        f"The {n_ops:,} ops last {mean_us:.2f} µs on average: recording them may have slowed the program severalfold, "
        "and the shares of the shortest ops are too large."
    ]
