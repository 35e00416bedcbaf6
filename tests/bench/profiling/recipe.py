"""How does the recipe that nsys-jax patches into nsys project NVTX ranges? The rival of the projection bench.

Written anew, step by step as the original works, because the original runs only inside an installed nsys: GPU ops are
merged with their calls by pandas; per thread a sweep over both keeps a set of the open ranges and notes, for each
call, those that contain it; per op and range a dictionary keeps the first start and the last end; a stack over the
rows of the result then finds parents, levels and stacks, writing cell by cell.

Source: NVIDIA/JAX-Toolbox:.github/container/nsys_jax/nsys_jax/scripts/patch_nsys.py (the version for nsys 2024.6.2)
"""

from __future__ import annotations

from collections import defaultdict
from importlib import import_module
from typing import Any

import numpy as np

from nightjar_profiling.readers.projection import LATEST, NONE, Calls, Ops, Ranges


def project_as_recipe(ranges: Ranges, calls: Calls, ops: Ops) -> tuple[np.ndarray, np.ndarray]:
    """First start and last end of the ops of each range."""
    pd: Any = import_module("pandas")
    of_ops = pd.DataFrame(
        {"gpu_start": ops.start, "gpu_end": ops.end, "pid": ops.process, "correlationId": ops.correlation}
    )
    of_calls = pd.DataFrame(
        {
            "start": calls.start,
            "end": calls.end,
            "tid": calls.thread,
            "pid": calls.process,
            "correlationId": calls.correlation,
        }
    )
    cuda = of_ops.merge(of_calls, on=["pid", "correlationId"]).sort_values("start").reset_index(drop=True)
    cuda["streamId"] = 7
    nvtx = pd.DataFrame({"start": ranges.start, "end": ranges.end, "tid": ranges.thread})
    nvtx = nvtx.sort_values(["start", "end"], ascending=[True, False])
    start, end = np.full(len(ranges.start), LATEST), np.full(len(ranges.start), NONE)
    by_thread = cuda.groupby("tid")
    for thread, of_thread in nvtx.groupby("tid"):
        if thread not in by_thread.groups:
            continue
        launched = by_thread.get_group(thread)
        containing = _sweep(pd, of_thread, launched)
        innermost = _find_innermost(pd, of_thread)
        projected, streams = _aggregate(pd, launched, containing, innermost)
        rows = _find_hierarchy(projected, streams)
        start[rows["originalIndex"]], end[rows["originalIndex"]] = rows["start"], rows["end"]
    return start, end


def _sweep(pd: Any, nvtx: Any, cuda: Any) -> dict[int, set[int]]:
    """For each call, the ranges that contain it."""
    containing: dict[int, set[int]] = defaultdict(set)
    open_ranges: set[int] = set()
    starts = pd.DataFrame({"time": nvtx["start"]}).sort_values("time")
    ends = pd.DataFrame({"time": nvtx["end"]}).sort_values("time")
    times = pd.DataFrame({"start": cuda["start"], "end": cuda["end"]}).sort_values("start")
    begins, stops, calls = starts.itertuples(), ends.itertuples(), times.itertuples()
    begin, stop, call = next(begins, None), next(stops, None), next(calls, None)
    while stop is not None and call is not None:
        if begin is not None and begin.time <= call.start:
            open_ranges.add(begin.Index)
            begin = next(begins, None)
        elif stop.time <= call.start:
            open_ranges.remove(stop.Index)
            stop = next(stops, None)
        else:
            for index in open_ranges:
                if call.end <= ends.loc[index, "time"]:
                    containing[call.Index].add(index)
            call = next(calls, None)
    return containing


def _find_innermost(pd: Any, nvtx: Any) -> set[int]:
    """The ranges that contain no other."""
    parent = pd.Series(np.nan, index=nvtx.index)
    stack: list[Any] = []
    for row in nvtx.itertuples():
        while stack and row.end > stack[-1].end:
            stack.pop()
        if stack:
            parent[row.Index] = stack[-1].Index
        stack.append(row)
    return set(parent[~parent.index.isin(parent.dropna().unique())].index)


def _aggregate(pd: Any, cuda: Any, containing: dict[int, set[int]], innermost: set[int]) -> tuple[Any, Any]:
    """The span of the ops of each range, and the streams that they ran on."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    streams: dict[int, set[int]] = defaultdict(set)
    for row in cuda.itertuples():
        if row.Index not in containing:
            continue
        for index in containing[row.Index]:
            streams[index].add(row.streamId)
            start, end = row.gpu_start, row.gpu_end
            if hasattr(row, "groupId") and not pd.isna(row.groupId) and index in innermost:
                continue  # a node of a CUDA graph; there is none here
            if index not in first:
                first[index], last[index] = start, end
                continue
            first[index] = min(first[index], start)
            last[index] = max(last[index], end)
    table = pd.DataFrame({"originalIndex": list(first), "start": list(first.values()), "end": list(last.values())})
    by = ["start", "end", "originalIndex"]
    return table.sort_values(by, ascending=[True, False, True]).reset_index(drop=True), streams


def _find_hierarchy(projected: Any, streams: dict[int, set[int]]) -> Any:
    """The same rows with parent, level and stack."""
    table = projected.assign(parentId=None, stackLevel=0, rangeStack=None)
    stack: list[Any] = []
    for row in table.itertuples():
        while stack and row.end > stack[-1].end:
            stack.pop()
        stack.append(row)
        shared = [other for other in stack if streams[other.originalIndex] & streams[row.originalIndex]]
        table.at[row.Index, "parentId"] = shared[-2].Index if len(shared) > 1 else np.nan
        table.at[row.Index, "stackLevel"] = len(shared) - 1
        table.at[row.Index, "rangeStack"] = [other.Index for other in shared]
    return table
