"""What did the compilation consist of, the work of its thread pool included?

In: host ranges with their titles and parents. Out: rows of the table `compile`: what lies below a `XlaCompile` range.
XLA compiles in parallel on the threads of a pool, whose ranges have no parent of their own: such a range is put below
the innermost range of a compiling thread that was open all the while. Ranges that are not XLA's (NCCL, cuBLAS) are left
out, and their time is that of the XLA range around them.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from nightjar_profiling.capture_folder.tables import SCHEMAS, make_table
from nightjar_profiling.readers.annotations.xla_ranges import XlaRanges, find_nearest
from nightjar_profiling.readers.annotations.xla_titles import Titles
from nightjar_profiling.readers.projection import NONE, Ints, find_inner

ROOT = "XlaCompile:"


def make_compile(ranges: pl.DataFrame, titles: Titles, parent: Ints, xla: XlaRanges) -> pl.DataFrame:
    """The table `compile`.

    Args:
        ranges: `rank`, `thread`, `range_id`, `start_ns`, `end_ns`, sorted in no way.
        titles: of the ranges; null unless XLA's.
        parent: row number of the range around each, or -1.
        xla: what the titles say.
    """
    is_root = titles.distinct.str.starts_with(ROOT).fill_null(value=False).to_numpy()[titles.place]
    if not is_root.any():
        return make_table("compile", ())
    is_xla = titles.distinct.str.contains("^(?:Xla|Thunk:)").fill_null(value=False).to_numpy()[titles.place]
    around = np.where(parent >= 0, find_nearest(parent, is_xla)[parent], NONE)  # skips what is not XLA's
    around = np.where(is_xla, around, NONE)
    start, end = ranges["start_ns"].to_numpy(), ranges["end_ns"].to_numpy()
    threads = ranges["thread"].to_numpy()
    compiles = find_nearest(around, is_root) >= 0
    around = graft(is_xla & (around < 0) & ~is_root, is_root, compiles, around, threads, start, end)
    keep = (find_nearest(around, compiles) >= 0) & is_xla
    rows = np.flatnonzero(keep)
    names_program = xla.told["compiled"].is_not_null().to_numpy()[xla.place[:-1]]
    named = find_nearest(around, names_program)[rows]
    kept = pl.Series(rows)
    duration = ranges["end_ns"] - ranges["start_ns"]
    inside = np.zeros(len(keep), np.int64)  # of children on the same thread
    below = rows[(around[rows] >= 0)]
    below = below[threads[below] == threads[around[below]]]
    np.add.at(inside, around[below], duration.to_numpy()[below])
    numbers = ranges["range_id"]
    of_parent = pl.Series(np.where(around[rows] >= 0, around[rows], NONE)).replace(NONE, None)
    table = pl.DataFrame(
        {
            "rank": ranges["rank"].gather(kept),
            "thread": ranges["thread"].gather(kept),
            "range_id": numbers.gather(kept),
            "parent_id": numbers.gather(of_parent),
            "name": titles.distinct.gather(titles.place[rows]),
            "program": xla.tell("compiled", named),
            "program_id": xla.tell("program_id", named),
            "start_ns": ranges["start_ns"].gather(kept),
            "duration_ns": duration.gather(kept),
            "self_ns": (duration.to_numpy() - inside)[rows],
        }
    )
    return table.select(pl.col(name).cast(kind) for name, kind in SCHEMAS["compile"].items())


def graft(
    waiting: np.ndarray,
    is_root: np.ndarray,
    compiles: np.ndarray,
    around: Ints,
    threads: Ints,
    start: Ints,
    end: Ints,
) -> Ints:
    """Parents with those of the pool's outermost ranges filled in."""
    workers = np.flatnonzero(waiting)
    grafted = around.copy()
    shortest = np.full(len(around), np.iinfo(np.int64).max)
    for thread in np.unique(threads[is_root]):
        open_rows = np.flatnonzero(compiles & (threads == thread))
        open_rows = open_rows[np.lexsort((-end[open_rows], start[open_rows]))]
        place = np.full(len(around) + 1, NONE)
        place[open_rows] = np.arange(len(open_rows))
        parents = place[around[open_rows]]  # -1 is the last place, which is empty
        others = workers[threads[workers] != thread]
        inner = find_inner(start[open_rows], end[open_rows], parents, start[others], end[others])
        inside = inner >= 0
        others, rows = others[inside], open_rows[inner[inside]]
        took = end[rows] - start[rows]
        better = took < shortest[others]
        grafted[others[better]] = rows[better]
        shortest[others[better]] = took[better]
    return grafted
