"""How long does the projection of NVTX ranges onto GPU ops take, against a read of the tables?

The input is a run of 4 threads that launch programs of 200 thunks, each thunk of one kernel, every tenth with a range
of NCCL inside. Times are CPU seconds, the least of several runs; memory is the peak of a process that makes the input
and projects it.
"""

import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl

from nightjar_profiling.readers.projection import Calls, Ops, Ranges, project
from tests.bench.table import Row

THREADS, PER_PROGRAM, PER_COLLECTIVE = 4, 200, 10
SIZES = (100_000, 1_000_000, 10_000_000)
PEAK_GIB = 4.0


def make_run(n: int) -> tuple[Ranges, Calls, Ops]:
    """A run of n kernels."""
    kernel = np.arange(n)
    start = kernel * 10_000
    thread = 77 + kernel // PER_PROGRAM % THREADS
    first, nccl = kernel[::PER_PROGRAM], kernel[::PER_COLLECTIVE]
    ranges = Ranges(
        start=np.concatenate([start[first] - 50, start, start[nccl] + 100]),
        end=np.concatenate([start[first] + PER_PROGRAM * 10_000 - 100, start + 8_000, start[nccl] + 7_000]),
        thread=np.concatenate([thread[first], thread, thread[nccl]]),
    )
    order = np.argsort(ranges.start, kind="stable")  # as a profiler writes them
    process = np.full(n, 1 << 24)
    return (
        Ranges(start=ranges.start[order], end=ranges.end[order], thread=ranges.thread[order]),
        Calls(start=start + 2_000, end=start + 6_000, thread=thread, process=process, correlation=kernel + 1_000),
        Ops(start=start + 9_000, end=start + 15_000, process=process, correlation=kernel + 1_000),
    )


GROWTH = "growth of the time per kernel, ten times the kernels"


def list_goals() -> list[str]:
    return ["time of a read of the Parquet tables", "peak memory at 10M kernels", GROWTH]


def measure() -> list[Row]:
    cpu_s: dict[int, float] = {}
    for n in SIZES[:2]:
        run = make_run(n)
        cpu_s[n] = cpu_seconds(lambda run=run: project(*run), 5)  # type: ignore[misc]
    n = SIZES[1]
    child = subprocess.run(
        [sys.executable, "-m", "tests.bench.profiling.projection"], capture_output=True, text=True, check=True
    )
    cpu_s[SIZES[2]], peak_gib = map(float, child.stdout.split())
    read_s = time_read(make_run(n))
    growth = max(cpu_s[b] / cpu_s[a] / (b / a) for a, b in pairwise(SIZES))
    return [
        Row("100k kernels", cpu_s[SIZES[0]], unit="s"),
        Row("1M kernels", cpu_s[n], unit="s"),
        Row("10M kernels", cpu_s[SIZES[2]], unit="s"),
        Row("time of a read of the Parquet tables", cpu_s[n] / read_s, goal=1.0, unit="x"),
        Row("peak memory at 10M kernels", peak_gib, goal=PEAK_GIB, unit="GiB"),
        Row(GROWTH, growth, goal=2.0, unit="x"),
    ]


def cpu_seconds(run: Callable[[], object], times: int) -> float:
    """CPU seconds of the fastest of some runs."""
    least = math.inf
    for _ in range(times):
        before = time.process_time()
        run()
        least = min(least, time.process_time() - before)
    return least


def time_read(run: tuple[Ranges, Calls, Ops]) -> float:
    """CPU seconds of a read of these tables from Parquet, with the columns that the reader of nsys exports asks for."""
    ranges, calls, ops = run
    texts = pl.Series([f"Thunk:#name=jit(step)/jit(main)/dot_general,hlo_op=fusion.{n}#" for n in range(5_000)])
    texts = texts.gather(np.arange(len(ranges.start)) % len(texts))
    one, name = np.ones(len(ops.start), np.int64), np.arange(len(ops.start)) % 500
    nvtx = {"start": ranges.start, "end": ranges.end, "eventType": 59, "text": texts, "globalTid": ranges.thread}
    runtime = {"start": calls.start, "end": calls.end, "globalTid": calls.thread, "correlationId": calls.correlation}
    kernel = {"start": ops.start, "end": ops.end, "deviceId": one, "contextId": one, "streamId": one * 7}
    kernel |= {"correlationId": ops.correlation, "globalPid": ops.process, "demangledName": name, "shortName": name}
    tables = {
        "NVTX_EVENTS": pl.DataFrame(nvtx | {"textId": None, "endGlobalTid": None, "domainId": 1, "rangeId": None}),
        "CUPTI_ACTIVITY_KIND_RUNTIME": pl.DataFrame(runtime | {"nameId": name}),
        "CUPTI_ACTIVITY_KIND_KERNEL": pl.DataFrame(kernel | {"graphNodeId": None}),
    }
    with tempfile.TemporaryDirectory() as folder:
        for table, frame in tables.items():
            frame.write_parquet(Path(folder) / f"{table}.parquet")
        return cpu_seconds(lambda: [pl.read_parquet(Path(folder) / f"{table}.parquet") for table in tables], 5)


if __name__ == "__main__":
    import resource

    big = make_run(SIZES[2])
    print(cpu_seconds(lambda: project(*big), 3), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)
