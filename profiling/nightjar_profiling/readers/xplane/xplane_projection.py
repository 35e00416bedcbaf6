"""Device times of host ranges.

In: the table `ranges` of a trace, its host planes and the table `ops`. Out: `ranges` with the span and the number of
the ops that each range launched; a launch of a CUDA graph counts once. Without calls in the trace (no GPU), the table
stays unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from nightjar_profiling.readers.projection import NONE, Calls, Ops, Ranges, project
from nightjar_profiling.readers.xplane.xplane_host import Decoded


def project_ranges(ranges: pl.DataFrame, hosts: Sequence[Decoded], ops: pl.DataFrame) -> pl.DataFrame:
    """Fills `device_start_ns`, `device_duration_ns` and `n_ops` of the ranges that launched something."""
    launched = ops.filter(pl.col("correlation_id").is_not_null() & pl.col("launch_ns").is_not_null())
    if launched.is_empty() or ranges.is_empty():
        return ranges
    start, duration, thread, correlation = (np.concatenate(column) for column in zip(*map(_calls, hosts), strict=True))
    begins = ranges["start_ns"].to_numpy()
    op_start = launched["start_ns"].to_numpy()
    projection = project(
        Ranges(start=begins, end=begins + ranges["duration_ns"].to_numpy(), thread=ranges["thread"].to_numpy()),
        Calls(
            start=start,
            end=start + duration,
            thread=thread,
            process=np.zeros(len(start), np.int64),
            correlation=correlation,
        ),
        Ops(
            start=op_start,
            end=op_start + launched["duration_ns"].to_numpy(),
            process=np.zeros(len(op_start), np.int64),
            correlation=launched["correlation_id"].fill_null(NONE).to_numpy(),
        ),
    )
    ran = pl.Series(projection.n_calls > 0)
    return ranges.with_columns(
        device_start_ns=pl.when(ran).then(pl.Series(projection.start)),
        device_duration_ns=pl.when(ran).then(pl.Series(projection.end) - pl.Series(projection.start)),
        n_ops=pl.when(ran).then(pl.Series(projection.n_calls)),
    )


def _calls(host: Decoded) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Start, duration, thread and correlation id of the calls of a host plane."""
    rows = np.flatnonzero(host.has("correlation_id"))
    threads = np.array([line.line_id for line in host.lines] or [0], np.int64)
    ids = host.integers("correlation_id").values[rows]
    return host.start_ns[rows], host.duration_ns[rows], threads[host.line[rows]], ids
