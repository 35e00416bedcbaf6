"""Where does the time of compilation go, when a part of it runs on many threads?

In: the table `compile`. Out: for each range the *wall time* that it answers for, so that they sum to what one waited.

On the thread that compiles, a range answers for its duration less that of its children. Where it hands work to a pool,
its children lie on other threads; they and all below them answer together for the stretch of time from the first's
start to the last's end, each in proportion to its own self time. With 25 % of the pool's time in task A and 75 % in
task B, a stretch of 20 s is 5 s of A and 15 s of B, though the sum over eight threads may be 150 s. Children on the
compiling thread in between part the stretch in two.

Source: NVIDIA/JAX-Toolbox:.github/container/nsys_jax/nsys_jax/analysis.py (`generate_compilation_statistics`), which
knows one stretch per range
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

import polars as pl

from nightjar_profiling.capture_folder.tables import Tables

# What tells one compilation from another, and is not part of a phase's name: `#module=M,program_id=N#`.
PROGRAM_FIELD = r"(?:module|program_id)=[^,#]*"


@dataclass(slots=True)
class _Range:
    number: int
    thread: int
    parent: int | None
    start_ns: int
    end_ns: int
    same: list[int] = field(default_factory=list)  # children on its thread
    workers: list[int] = field(default_factory=list)  # and on others
    wall_ns: float = 0.0

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns


def account_compile_time(compile_ranges: pl.DataFrame) -> pl.DataFrame:
    """The table with a column `wall_ns` (Float64): what each range answers for.

    Its sum is that of the durations of the outermost ranges, those that have no parent.
    """
    wall: dict[tuple[int, int], float] = {}
    for (rank,), group in compile_ranges.group_by("rank"):
        columns = ("range_id", "thread", "parent_id", "start_ns", "duration_ns")
        found = {
            number: _Range(number, thread, parent, start, start + duration)
            for number, thread, parent, start, duration in group.select(columns).iter_rows()
        }
        _share_out(found)
        wall.update(((rank, one.number), one.wall_ns) for one in found.values())
    values = [wall[key] for key in compile_ranges.select("rank", "range_id").iter_rows()]
    return compile_ranges.with_columns(wall_ns=pl.Series(values, dtype=pl.Float64))


def _share_out(found: dict[int, _Range]) -> None:
    for one in found.values():
        parent = found.get(one.parent) if one.parent is not None else None
        if parent is not None:
            (parent.same if parent.thread == one.thread else parent.workers).append(one.number)
    roots = [one for one in found.values() if one.parent not in found]
    waiting = [one.number for one in roots]
    while waiting:  # on the threads that compile; what a pool does is shared out as it is met
        one = found[waiting.pop()]
        parallel_ns = sum(_share_stretch(found, stretch) for stretch in _stretches(found, one))
        one.wall_ns = one.duration_ns - sum(found[child].duration_ns for child in one.same) - parallel_ns
        waiting += one.same


def _stretches(found: dict[int, _Range], one: _Range) -> list[list[int]]:
    """The children on other threads, parted by those on the range's own."""
    breaks = sorted(found[child].start_ns for child in one.same)
    parts: dict[int, list[int]] = defaultdict(list)
    position = 0
    for child in sorted(one.workers, key=lambda number: found[number].start_ns):
        while position < len(breaks) and breaks[position] <= found[child].start_ns:
            position += 1
        parts[position].append(child)
    return list(parts.values())


def _share_stretch(found: dict[int, _Range], workers: list[int]) -> int:
    """Gives the stretch of some pool's work to all ranges in it; returns its length."""
    length_ns = max(found[n].end_ns for n in workers) - min(found[n].start_ns for n in workers)
    busy = {n: _self_ns(found, n) for n in _below(found, workers)}
    total_ns = sum(busy.values())
    for number, self_ns in busy.items():
        found[number].wall_ns = length_ns * self_ns / total_ns if total_ns else length_ns / len(busy)
    return length_ns


def _self_ns(found: dict[int, _Range], number: int) -> int:
    return max(found[number].duration_ns - sum(found[child].duration_ns for child in found[number].same), 0)


def _below(found: dict[int, _Range], numbers: Iterable[int]) -> list[int]:
    """Ranges and all their descendants."""
    reached, waiting = [], list(numbers)
    while waiting:
        number = waiting.pop()
        reached.append(number)
        waiting += (*found[number].same, *found[number].workers)
    return reached


def fold_autotuning(compile_ranges: pl.DataFrame) -> pl.DataFrame:
    """The table without what lies below the autotuner's compilations and measurements.

    The time of what goes is theirs: an autotuned kernel is compiled and thrown away by the hundred, and its passes
    would pass for the program's own.
    """
    tunes = pl.col("name").str.extract(r"^(XlaAutotuner(?:Compilation|Measurement))")
    rows = list(compile_ranges.select("rank", "range_id", "parent_id", tunes.is_not_null()).iter_rows())
    parents = {(rank, number): parent for rank, number, parent, _ in rows}
    below = {(rank, number): tuned for rank, number, _, tuned in rows}  # itself, or below one

    def is_below(rank: int, number: int | None) -> bool:
        path = []
        while number is not None and not below.get((rank, number), False) and (rank, number) in parents:
            path.append((rank, number))
            number = parents.pop((rank, number))  # each is asked once
        answer = number is not None and below.get((rank, number), False)
        below.update(dict.fromkeys(path, answer))
        return answer

    keep = [not is_below(rank, parent) for rank, _, parent, _ in rows]
    return compile_ranges.filter(pl.Series(keep, dtype=pl.Boolean)).with_columns(name=tunes.fill_null(pl.col("name")))


def summarise_compile(tables: Tables) -> pl.DataFrame:
    """Compilation by phase, over all programs and ranks; autotuning is one phase.

    Returns:
        Columns: `name` (without the program's), `count`, `wall_ns` (Float64) and `fraction` of the sum, largest first.
    """
    accounted = account_compile_time(fold_autotuning(tables.compile)).with_columns(name=_phase())
    sums = accounted.group_by("name").agg(count=pl.len().cast(pl.Int64), wall_ns=pl.col("wall_ns").sum())
    total = pl.col("wall_ns").sum()
    return sums.with_columns(fraction=pl.when(total > 0).then(pl.col("wall_ns") / total)).sort(
        "wall_ns", "name", descending=[True, False]
    )


def _phase() -> pl.Expr:
    """The name of a range without the program's: `XlaPass:#name=dce,program_id=7#` is `XlaPass:#name=dce#`."""
    bare = pl.col("name").str.replace_all(PROGRAM_FIELD, "").str.replace_all(r",+", ",").str.replace_all("#,|,#", "#")
    return pl.when(pl.col("name").str.contains("#")).then(bare.str.replace(r":?#{2,}$|:#$", "")).otherwise("name")


def summarise_compile_programs(tables: Tables) -> pl.DataFrame:
    """Compilation by program.

    Returns:
        Columns: `rank`, `program`, `program_id`, `wall_ns` (Float64), largest first.
    """
    keys = ["rank", "program", "program_id"]
    accounted = account_compile_time(tables.compile)
    return accounted.group_by(keys).agg(pl.col("wall_ns").sum()).sort("wall_ns", descending=True)
