"""Compile time by phase and by program, with parallel work scaled to wall time.

In: the table `compile`. Out: the *wall time* of each range, so that the sum is the time that the user waited.

On the compiling thread, the wall time of a range is its duration minus its children's. If a range hands work to a
thread pool, it has children on other threads. These and all their descendants share the interval from the start of the
first to the end of the last, each in proportion to its self time. If task A takes 25 % of the pool's time and task B
75 %, an interval of 20 s counts as 5 s of A and 15 s of B, even if the sum over eight threads is 150 s. Children on the
compiling thread that start in between split the interval in two.

Source: NVIDIA/JAX-Toolbox:.github/container/nsys_jax/nsys_jax/analysis.py (`generate_compilation_statistics`), which
has only one such interval per range
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

import polars as pl

from nightjar_profiling.capture_folder.tables import Tables

# The part of a range's name that identifies the program, not the phase: `#module=M,program_id=N#`.
PROGRAM_FIELD = r"(?:module|program_id)=[^,#]*"


@dataclass(slots=True)
class _Range:
    number: int
    thread: int
    parent: int | None
    start_ns: int
    end_ns: int
    same_thread: list[int] = field(default_factory=list)  # children on the thread of the range
    other_threads: list[int] = field(default_factory=list)
    wall_ns: float = 0.0

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns


def account_compile_time(compile_ranges: pl.DataFrame) -> pl.DataFrame:
    """The table with a column `wall_ns` (Float64): the wall time of each range.

    Its sum is the total duration of the outermost ranges, those without a parent.
    """
    wall: dict[tuple[int, int], float] = {}
    for (rank,), group in compile_ranges.group_by("rank"):
        columns = ("range_id", "thread", "parent_id", "start_ns", "duration_ns")
        ranges = {
            number: _Range(number, thread, parent, start, start + duration)
            for number, thread, parent, start, duration in group.select(columns).iter_rows()
        }
        _assign_wall_time(ranges)
        wall.update(((rank, number), part.wall_ns) for number, part in ranges.items())
    values = [wall[key] for key in compile_ranges.select("rank", "range_id").iter_rows()]
    return compile_ranges.with_columns(wall_ns=pl.Series(values, dtype=pl.Float64))


def _assign_wall_time(ranges: dict[int, _Range]) -> None:
    waiting = []
    for part in ranges.values():
        if part.parent is not None:
            parent = ranges.get(part.parent)
        else:
            parent = None
        if parent is None:
            waiting.append(part.number)
        elif parent.thread == part.thread:
            parent.same_thread.append(part.number)
        else:
            parent.other_threads.append(part.number)
    while waiting:  # only ranges on the compiling threads; `_share_interval` handles the thread pools
        part = ranges[waiting.pop()]
        parallel_ns = sum(_share_interval(ranges, tasks) for tasks in _split_parallel(ranges, part))
        part.wall_ns = part.duration_ns - sum(ranges[child].duration_ns for child in part.same_thread) - parallel_ns
        waiting += part.same_thread


def _split_parallel(ranges: dict[int, _Range], parent: _Range) -> list[list[int]]:
    """The children on other threads, in groups separated by the children on the parent's own thread."""
    breaks = sorted(ranges[child].start_ns for child in parent.same_thread)
    groups: dict[int, list[int]] = defaultdict(list)
    position = 0
    for child in sorted(parent.other_threads, key=lambda number: ranges[number].start_ns):
        while position < len(breaks) and breaks[position] <= ranges[child].start_ns:
            position += 1
        groups[position].append(child)
    return list(groups.values())


def _share_interval(ranges: dict[int, _Range], tasks: list[int]) -> int:
    """Divides the interval of a group of parallel tasks among all ranges in it; returns its length."""
    length_ns = max(ranges[n].end_ns for n in tasks) - min(ranges[n].start_ns for n in tasks)
    busy = {n: _self_ns(ranges, n) for n in _descendants(ranges, tasks)}
    total_ns = sum(busy.values())
    for number, self_ns in busy.items():
        ranges[number].wall_ns = length_ns * self_ns / total_ns if total_ns else length_ns / len(busy)
    return length_ns


def _self_ns(ranges: dict[int, _Range], number: int) -> int:
    children_ns = sum(ranges[child].duration_ns for child in ranges[number].same_thread)
    return max(ranges[number].duration_ns - children_ns, 0)


def _descendants(ranges: dict[int, _Range], numbers: Iterable[int]) -> list[int]:
    reached, waiting = [], list(numbers)
    while waiting:
        number = waiting.pop()
        reached.append(number)
        waiting += (*ranges[number].same_thread, *ranges[number].other_threads)
    return reached


def fold_autotuning(compile_ranges: pl.DataFrame) -> pl.DataFrame:
    """The table without the ranges inside the autotuner's compilations and measurements.

    Their time counts for the autotuner. It compiles hundreds of kernels and discards them, and their passes would
    otherwise be counted as the program's.
    """
    tunes = pl.col("name").str.extract(r"^(XlaAutotuner(?:Compilation|Measurement))")
    rows = list(compile_ranges.select("rank", "range_id", "parent_id", tunes.is_not_null()).iter_rows())
    parents = {(rank, number): parent for rank, number, parent, _ in rows}
    below = {(rank, number): tuned for rank, number, _, tuned in rows}  # it is one, or is inside one

    def is_below(rank: int, number: int | None) -> bool:
        path = []
        while number is not None and not below.get((rank, number), False) and (rank, number) in parents:
            path.append((rank, number))
            number = parents.pop((rank, number))  # visit each range once
        result = number is not None and below.get((rank, number), False)
        below.update(dict.fromkeys(path, result))
        return result

    keep = [not is_below(rank, parent) for rank, _, parent, _ in rows]
    return compile_ranges.filter(pl.Series(keep, dtype=pl.Boolean)).with_columns(name=tunes.fill_null(pl.col("name")))


def summarise_compile(tables: Tables) -> pl.DataFrame:
    """Compile time by phase, over all programs and ranks; autotuning is one phase.

    Returns:
        Columns: `name` (without the program), `count`, `wall_ns` (Float64) and `fraction` of the sum, largest first.
    """
    accounted = account_compile_time(fold_autotuning(tables.compile)).with_columns(name=_phase())
    sums = accounted.group_by("name").agg(count=pl.len().cast(pl.Int64), wall_ns=pl.col("wall_ns").sum())
    total = pl.col("wall_ns").sum()
    return sums.with_columns(fraction=pl.when(total > 0).then(pl.col("wall_ns") / total)).sort(
        "wall_ns", "name", descending=[True, False]
    )


def _phase() -> pl.Expr:
    """The name of a range without the program: `XlaPass:#name=dce,program_id=7#` is `XlaPass:#name=dce#`."""
    bare = pl.col("name").str.replace_all(PROGRAM_FIELD, "").str.replace_all(r",+", ",").str.replace_all("#,|,#", "#")
    return pl.when(pl.col("name").str.contains("#")).then(bare.str.replace(r":?#{2,}$|:#$", "")).otherwise("name")
