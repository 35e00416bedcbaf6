"""What became slower, by how much, and is it more than chance?

In: two captures. Out: changes of the whole, of programs, lines and instructions, ranked by what they cost. Everything
is compared by its device time in one execution of its program, mean over devices, warm-up left out (`warmup`), so
that captures of different lengths can be compared; a program that runs k times as often as the main program (the one
with the most device time) counts k times, and one that ran only once is no part of a step. So all numbers are
nanoseconds per execution of the main program, the step.

The interval is Welch's, at 95 %, for the difference of two means whose spreads differ. It covers the spread between the
executions of one process, not that between processes: another allocation of memory, clock or neighbour is no chance
in it. Fewer than two executions on a side give no interval.

Source: B. L. Welch, The generalization of `Student's' problem when several different population variances are involved,
Biometrika 34, 1947
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from math import sqrt

import polars as pl

from nightjar_profiling.analyses.compare.diff_match import Line, SourceOf, instruction_keys, match_lines, match_programs
from nightjar_profiling.analyses.compare.student_t import t_quantile
from nightjar_profiling.analyses.lines import find_user_lines
from nightjar_profiling.analyses.warmup import find_steady
from nightjar_profiling.attribution.apportion import WEIGHTS, Fusion
from nightjar_profiling.capture_folder.tables import Tables

CONFIDENCE = 0.95
EXECUTION = ["program", "execution"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Device time of one thing in two captures, in nanoseconds per step.

    Attributes:
        name: of the program, line or instruction.
        before_ns: None: it appeared.
        after_ns: None: it vanished.
        low_ns: of the interval of the difference; None where there are too few executions.
        high_ns: as low_ns.
        function: of a line.
        source: text of a line, in the later capture.
    """

    name: str
    before_ns: float | None
    after_ns: float | None
    low_ns: float | None
    high_ns: float | None
    function: str | None = None
    source: str | None = None

    @property
    def delta_ns(self) -> float:
        """How much more it takes."""
        return (self.after_ns or 0.0) - (self.before_ns or 0.0)

    @property
    def fraction(self) -> float | None:
        """The difference by the time before; None where there was none."""
        return self.delta_ns / self.before_ns if self.before_ns else None

    @property
    def certain(self) -> bool:
        """Whether the interval leaves out zero."""
        return self.low_ns is not None and self.high_ns is not None and (self.low_ns > 0 or self.high_ns < 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Diff:
    """Two captures compared; each list by the size of the difference, largest first; `estimates`: which never ran."""

    total: Change
    programs: tuple[Change, ...]
    lines: tuple[Change, ...]
    instructions: tuple[Change, ...]
    executions: tuple[int, int]
    estimates: tuple[bool, bool]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the captures: its tables, what counts as the user's code, its sources, and whether it ever ran."""

    tables: Tables
    is_user_code: Callable[[str], bool]
    source_of: SourceOf
    estimate: bool = False


@dataclass(frozen=True, slots=True)
class _Mean:
    """Mean time of a step, the variance of that mean, and its degrees of freedom (None: unknown spread)."""

    ns: float
    variance: float
    freedom: float | None


def compare(before: Side, after: Side, fusion: Fusion = "split") -> Diff:
    """Compares two captures."""
    programs = match_programs(before.tables, after.tables)
    old, new = before.tables, _renumber(after.tables, programs)
    old_lines, new_lines = (find_user_lines(t.frames, s.is_user_code) for t, s in ((old, before), (new, after)))
    pairs = match_lines(_lines(old_lines), _lines(new_lines), before.source_of, after.source_of)
    old_keys, new_keys = _line_keys(old_lines, pairs), _line_keys(new_lines, {})
    same = _same_fingerprint(old, new)
    names = [_names(table, same, keys) for table, keys in ((old, old_keys), (new, new_keys))]
    shown = dict(pl.concat(names).select("key", "instruction").iter_rows())  # the later capture's name for it
    spent = [_executions(table, fusion) for table in (old, new)]
    counts = _counts(spent)
    program_names = dict(pl.concat([old.programs, new.programs]).select("program_id", "name").iter_rows())

    def changes(keys: list[pl.DataFrame], on: list[str], *, once: bool = False) -> tuple[Change, ...]:
        kept = [one if once else one.filter("recurs") for one in counts]
        sides = [_means(one.join(key, on=on, how="inner"), n) for one, key, n in zip(spent, keys, kept, strict=True)]
        return _rank(sides[0], sides[1])

    everything = [table.select("program").unique().with_columns(key=pl.lit("total")) for table in spent]
    by_program = [
        table.select("program").unique().with_columns(
            key=pl.col("program").replace_strict(program_names, default="no program", return_dtype=pl.String)
        )
        for table in spent
    ]  # fmt: skip
    totals = changes(everything, ["program"])
    lines = changes([old_keys, new_keys], ["program", "frame_id"])
    return Diff(
        total=totals[0] if totals else Change(name="total", before_ns=0, after_ns=0, low_ns=None, high_ns=None),
        programs=changes(by_program, ["program"], once=True),
        lines=tuple(_describe(one, after.source_of, before.source_of) for one in lines),
        instructions=tuple(replace(one, name=shown[one.name]) for one in changes(names, ["program", "instruction"])),
        executions=(_main_count(counts[0]), _main_count(counts[1])),
        estimates=(before.estimate, after.estimate),
        warnings=(
            *(f"{name} is an estimate, not a measurement: it never ran." for name in _estimates(before, after)),
            *_warnings(old, new, counts),
        ),
    )


def _renumber(tables: Tables, programs: Mapping[int, int]) -> Tables:
    """The later capture with the program ids of the earlier; those that it lacks get ids of their own."""
    fresh = {number: -1 - number for number in tables.programs["program_id"].to_list() if number not in programs}
    numbers = {**programs, **fresh}
    moved = {
        name: getattr(tables, name).with_columns(pl.col("program_id").replace(numbers))
        for name in (
            "programs",
            "instructions",
            "frames",
            "executions",
            "ops",
            "collectives",
            "compile",
            "attribution",
            "groups",
            "variants",
        )
    }
    return Tables(**{**{name: getattr(tables, name) for name in tables.__slots__}, **moved})


def _lines(lines: pl.DataFrame) -> list[Line]:
    return [Line(*row) for row in lines.select("file", "line", "function").unique().iter_rows()]


def _line_keys(lines: pl.DataFrame, pairs: Mapping[Line, Line]) -> pl.DataFrame:
    """`program`, `frame_id`, `key`: file, function and line, in the words of the later capture."""
    keys = []
    for program, frame, *place in lines.select("program_id", "frame_id", "file", "line", "function").iter_rows():
        line = pairs.get(Line(*place), Line(*place))
        keys.append((program, frame, f"{line.file}\0{line.line}\0{line.function}"))
    return pl.DataFrame(keys, schema={"program": pl.Int64, "frame_id": pl.Int64, "key": pl.String}, orient="row")


def _same_fingerprint(old: Tables, new: Tables) -> dict[int, bool]:
    both = old.programs.join(new.programs, on="program_id", how="inner")
    return dict(both.select("program_id", pl.col("fingerprint") == pl.col("fingerprint_right")).iter_rows())


def _names(tables: Tables, same: Mapping[int, bool], line_keys: pl.DataFrame) -> pl.DataFrame:
    lines = line_keys.select(pl.col("program").alias("program_id"), "frame_id", pl.col("key").alias("line_key"))
    return instruction_keys(tables, same, lines).rename({"program_id": "program"})


def _executions(tables: Tables, fusion: Fusion) -> pl.DataFrame:
    """Device time (`ns`, a float: shares of ops) by program, execution, instruction and frame, mean over devices."""
    run = ["rank", "device", "program_id", "execution"]
    steady = find_steady(tables).select(run)
    devices = steady.group_by("program_id", "execution").agg(devices=pl.len())
    spent = (
        tables.ops.join(steady, on=run, how="semi")
        .group_by("program_id", "execution", "instruction")
        .agg(ns=pl.col("duration_ns").sum())
        .join(devices, on=["program_id", "execution"])
    )
    shares = tables.attribution.select("program_id", "instruction", "frame_id", weight=WEIGHTS[fusion])
    split = spent.join(shares.filter(pl.col("weight") > 0), on=["program_id", "instruction"], how="left")
    share = pl.col("weight").fill_null(1.0) / pl.col("devices")
    return split.select(
        pl.col("program_id").alias("program"), "execution", "instruction", "frame_id", ns=pl.col("ns") * share
    )


def _counts(sides: list[pl.DataFrame]) -> list[pl.DataFrame]:
    """For each side, by program: `executions`; `per_step`, executions for one of the main program; and `recurs`.

    The main program is the same on both sides, where one ran on both. A program recurs unless it ran once on some side
    while the main program ran more often: an initialization, which is no part of a step.
    """
    sums = [side.group_by("program").agg(n=pl.col("execution").n_unique(), ns=pl.col("ns").sum()) for side in sides]
    shared = sums[0].join(sums[1].select("program"), on="program", how="semi")
    mains = [(shared if shared.height else one).sort("ns", "program", descending=True).head(1) for one in sums]
    found = []
    for one, main in zip(sums, mains, strict=True):
        steps = one.join(main.select("program"), on="program", how="semi")["n"]
        count = int(steps[0]) if len(steps) else 1
        once = (pl.col("n") == 1) & (count > 1)
        found.append(one.select("program", executions="n", per_step=pl.col("n") / count, recurs=~once))
    rare = pl.concat(found).filter(~pl.col("recurs"))["program"].implode()
    return [one.with_columns(recurs=~pl.col("program").is_in(rare)) for one in found]


def _main_count(counts: pl.DataFrame) -> int:
    main = counts.filter(pl.col("per_step") == 1.0)["executions"]
    return int(main[0]) if len(main) else 0


def _means(spent: pl.DataFrame, counts: pl.DataFrame) -> dict[str, _Mean]:
    """Time per step by key: over programs, the sum of mean times in an execution, as often as each runs in a step."""
    runs = spent.group_by("key", *EXECUTION).agg(pl.col("ns").sum())
    parts = runs.group_by("key", "program").agg(total=pl.col("ns").sum(), squares=(pl.col("ns") ** 2).sum())
    found: dict[str, list[tuple[float, float, int]]] = {}
    for key, _, total, squares, n, per_step in parts.join(counts.drop("recurs"), on="program").iter_rows():
        mean = total / n  # an execution in which it did not run counts with 0
        spread = max(squares - n * mean**2, 0.0) / (n - 1) / n if n > 1 else 0.0
        found.setdefault(key, []).append((mean * per_step, spread * per_step**2, n))
    return {key: _sum(parts) for key, parts in found.items()}


def _sum(parts: Iterable[tuple[float, float, int]]) -> _Mean:
    parts = list(parts)
    ns, variance = sum(part[0] for part in parts), sum(part[1] for part in parts)
    known = [(spread, n - 1) for _, spread, n in parts]
    if any(freedom == 0 for _, freedom in known):
        return _Mean(ns, variance, None)
    lowest = sum(spread**2 / freedom for spread, freedom in known)
    return _Mean(ns, variance, variance**2 / lowest if lowest > 0 else float(max(f for _, f in known)))


def _rank(before: Mapping[str, _Mean], after: Mapping[str, _Mean]) -> tuple[Change, ...]:
    found = []
    for key in before.keys() | after.keys():
        old, new = before.get(key), after.get(key)
        low = high = None
        known = [one for one in (old, new) if one is not None]
        if all(one.freedom is not None for one in known):
            variance = sum(one.variance for one in known)
            terms = sum(one.variance**2 / (one.freedom or 1.0) for one in known)
            freedom = variance**2 / terms if terms > 0 else min(one.freedom or 1.0 for one in known)
            delta = (new.ns if new else 0.0) - (old.ns if old else 0.0)
            margin = t_quantile((1 - CONFIDENCE) / 2, freedom) * sqrt(variance)
            low, high = delta - margin, delta + margin
        found.append(
            Change(
                name=key,
                before_ns=None if old is None else old.ns,
                after_ns=None if new is None else new.ns,
                low_ns=low,
                high_ns=high,
            )
        )
    return tuple(sorted(found, key=lambda one: (-abs(one.delta_ns), one.name)))


def _describe(change: Change, *sources: SourceOf) -> Change:
    """The change of a line, with its name made readable and its text."""
    file, line, function = change.name.split("\0")
    text = next((text for source_of in sources if (text := source_of(file, int(line)))), None)
    return replace(change, name=f"{file}:{line}", function=function, source=text)


def _estimates(before: Side, after: Side) -> list[str]:
    return [name for name, side in (("A", before), ("B", after)) if side.estimate]


def _warnings(old: Tables, new: Tables, counts: list[pl.DataFrame]) -> Iterable[str]:
    for name, tables, count in (("A", old, counts[0]), ("B", new, counts[1])):
        if tables.executions.is_empty():
            yield f"{name} tells no executions of programs: nothing can be compared."
        elif _main_count(count) < 2:
            yield f"{name} has fewer than two executions of its main program after warm-up: there is no interval."
