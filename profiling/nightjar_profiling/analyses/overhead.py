"""May recording itself have slowed what was recorded?

In: the ops of a capture. Out: a warning where they are so short that writing down each takes as long as running it.
Measured on XLA:CPU: nothing that can be told from noise at thunks of tens of microseconds, 3.9 times the step time at
2,000 thunks a millisecond.
"""

from __future__ import annotations

import polars as pl

from nightjar_profiling.capture_folder.tables import Tables

SHORTEST_MEAN_NS = 2_000  # an event costs about 1 µs, half of that
FEWEST_OPS = 1_000  # fewer cost less than a millisecond altogether


def find_overhead(tables: Tables, backend: str) -> list[str]:
    """Warnings about the cost of recording a CPU's thunks; a GPU writes down its own kernels while others run."""
    thunks = tables.ops.filter(pl.col("kind") == "thunk")
    n_ops, thunk_ns = thunks.height, int(thunks["duration_ns"].sum())
    if backend != "jax" or n_ops < FEWEST_OPS or thunk_ns >= n_ops * SHORTEST_MEAN_NS:
        return []
    mean_us = thunk_ns / n_ops / 1e3
    return [
        f"The {n_ops:,} ops last {mean_us:.2f} µs on average: recording them may have slowed the program severalfold, "
        "and the shares of the shortest are too large."
    ]
