"""Comparison of two captures, with confidence intervals.

In: two captures. Out: changes of the total and of programs, lines and instructions, ordered by what they cost. Times
are device times of one execution of a program: means over devices, without warm-up (`warmup`), so that captures of
different lengths are comparable. A program that runs k times as often as the main program (the one with the most device
time) counts k times; one that ran only once is not part of a step. All numbers are thus nanoseconds per execution of
the main program, the step.

The interval is Welch's, at 95 %, for the difference of two means with different spreads. It covers the spread between
the executions of one process, not between processes: a different memory allocation, clock or neighbour process is
outside of it. With fewer than two executions on a side there is no interval.

Source: B. L. Welch, The generalization of `Student's' problem when several different population variances are involved,
Biometrika 34, 1947
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt

import polars as pl

from nightjar_profiling.analyses.compare.diff_match import Line, SourceOf, instruction_keys, match_lines, match_programs
from nightjar_profiling.analyses.lines import find_user_lines
from nightjar_profiling.analyses.warmup import find_steady_state
from nightjar_profiling.attribution.apportion import WEIGHTS, Fusion
from nightjar_profiling.capture_folder.tables import Tables

CONFIDENCE = 0.95
EXECUTION = ["program", "execution"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Device time of a program, line or instruction in two captures, in nanoseconds per step.

    Attributes:
        name: of the program, line or instruction.
        before_ns: None if only the later capture has it.
        after_ns: None if only the earlier capture has it.
        low_ns: lower bound of the difference; None if there are too few executions.
        high_ns: upper bound of the difference; None if there are too few executions.
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
        """The increase in time."""
        return (self.after_ns or 0.0) - (self.before_ns or 0.0)

    @property
    def fraction(self) -> float | None:
        """The difference relative to the time before; None if that is zero."""
        return self.delta_ns / self.before_ns if self.before_ns else None

    @property
    def certain(self) -> bool:
        """Whether the interval excludes zero."""
        return self.low_ns is not None and self.high_ns is not None and (self.low_ns > 0 or self.high_ns < 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Diff:
    """Changes between two captures, each list with the largest difference first; `estimates`: which side never ran."""

    total: Change
    programs: tuple[Change, ...]
    lines: tuple[Change, ...]
    instructions: tuple[Change, ...]
    executions: tuple[int, int]
    estimates: tuple[bool, bool]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the captures: its tables, its test for user code, its sources, and whether it is only an estimate."""

    tables: Tables
    is_user_code: Callable[[str], bool]
    source_of: SourceOf
    estimate: bool = False


@dataclass(frozen=True, slots=True)
class _Mean:
    """Mean time of a step, the variance of that mean, and its degrees of freedom (None if the spread is unknown)."""

    ns: float
    variance: float
    freedom: float | None


def compare(before: Side, after: Side, fusion: Fusion = "split") -> Diff:
    """Compares two captures."""
    programs = match_programs(before.tables, after.tables)
    old, new = before.tables, _renumber(after.tables, programs)
    old_lines = find_user_lines(old.frames, before.is_user_code)
    new_lines = find_user_lines(new.frames, after.is_user_code)
    pairs = match_lines(_lines(old_lines), _lines(new_lines), before.source_of, after.source_of)
    old_keys, new_keys = _line_keys(old_lines, pairs), _line_keys(new_lines, {})
    same = _same_fingerprint(old, new)
    names = [_names(table, same, keys) for table, keys in ((old, old_keys), (new, new_keys))]
    new_names = dict(pl.concat(names).select("key", "instruction").iter_rows())  # the later capture's takes precedence
    spent = [_executions(table, fusion) for table in (old, new)]
    counts = _counts(spent)
    program_names = dict(pl.concat([old.programs, new.programs]).select("program_id", "name").iter_rows())

    def changes(keys: list[pl.DataFrame], on: list[str], *, once: bool = False) -> tuple[Change, ...]:
        old_means, new_means = (
            _means(times.join(key, on=on, how="inner"), count if once else count.filter("recurs"))
            for times, key, count in zip(spent, keys, counts, strict=True)
        )
        return _rank(old_means, new_means)

    everything = [table.select("program").unique().with_columns(key=pl.lit("total")) for table in spent]
    by_program = [
        table.select("program").unique().with_columns(
            key=pl.col("program").replace_strict(program_names, default="no program", return_dtype=pl.String)
        )
        for table in spent
    ]  # fmt: skip
    sides = (("A", before), ("B", after))
    totals = changes(everything, ["program"])
    lines = changes([old_keys, new_keys], ["program", "frame_id"])
    instructions = changes(names, ["program", "instruction"])
    return Diff(
        total=totals[0] if totals else Change(name="total", before_ns=0, after_ns=0, low_ns=None, high_ns=None),
        programs=changes(by_program, ["program"], once=True),
        lines=tuple(_describe(change, after.source_of, before.source_of) for change in lines),
        instructions=tuple(replace(change, name=new_names[change.name]) for change in instructions),
        executions=(_main_count(counts[0]), _main_count(counts[1])),
        estimates=(before.estimate, after.estimate),
        warnings=(
            *(f"{name} is an estimate, not a measurement: it never ran." for name, side in sides if side.estimate),
            *_warnings(old, new, counts),
        ),
    )


def _renumber(tables: Tables, programs: Mapping[int, int]) -> Tables:
    """The later capture with the program ids of the earlier; programs that only the later has get negative ids."""
    fresh = {number: -1 - number for number in tables.programs["program_id"].to_list() if number not in programs}
    numbers = {**programs, **fresh}
    with_ids = ("programs", "instructions", "frames", "executions", "ops", "collectives", "compile", "attribution")
    moved = {
        name: getattr(tables, name).with_columns(pl.col("program_id").replace(numbers))
        for name in (*with_ids, "groups", "variants")
    }
    return Tables(**{**{name: getattr(tables, name) for name in tables.__slots__}, **moved})


def _lines(lines: pl.DataFrame) -> list[Line]:
    return [Line(*row) for row in lines.select("file", "line", "function").unique().iter_rows()]


def _line_keys(lines: pl.DataFrame, pairs: Mapping[Line, Line]) -> pl.DataFrame:
    """`program`, `frame_id`, `key`: file, line and function, as in the later capture."""
    keys = []
    for program, frame, *position in lines.select("program_id", "frame_id", "file", "line", "function").iter_rows():
        line = Line(*position)
        line = pairs.get(line, line)
        keys.append((program, frame, f"{line.file}\0{line.line}\0{line.function}"))
    return pl.DataFrame(keys, schema={"program": pl.Int64, "frame_id": pl.Int64, "key": pl.String}, orient="row")


def _same_fingerprint(old: Tables, new: Tables) -> dict[int, bool]:
    both = old.programs.join(new.programs, on="program_id", how="inner")
    return dict(both.select("program_id", pl.col("fingerprint") == pl.col("fingerprint_right")).iter_rows())


def _names(tables: Tables, same: Mapping[int, bool], line_keys: pl.DataFrame) -> pl.DataFrame:
    lines = line_keys.select(pl.col("program").alias("program_id"), "frame_id", pl.col("key").alias("line_key"))
    return instruction_keys(tables, same, lines).rename({"program_id": "program"})


def _executions(tables: Tables, fusion: Fusion) -> pl.DataFrame:
    """Device time (`ns`, a float) by program, execution, instruction and frame; mean over devices."""
    run = ["rank", "device", "program_id", "execution"]
    steady = find_steady_state(tables).select(run)
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
    """For each side, by program: `executions`; `per_step`, executions per execution of the main program; and `recurs`.

    The main program is the same on both sides if any program ran on both. A program recurs unless it ran once on one of
    the sides while the main program ran more often: such a program is an initialization, not part of a step.
    """
    sums = [side.group_by("program").agg(n=pl.col("execution").n_unique(), ns=pl.col("ns").sum()) for side in sides]
    shared = sums[0].join(sums[1].select("program"), on="program", how="semi")
    counts = []
    for side in sums:
        main = (shared if shared.height else side).sort("ns", "program", descending=True).head(1)
        steps = side.join(main.select("program"), on="program", how="semi")["n"]
        count = int(steps[0]) if len(steps) else 1
        once = (pl.col("n") == 1) & (count > 1)
        counts.append(side.select("program", executions="n", per_step=pl.col("n") / count, recurs=~once))
    rare = pl.concat(counts).filter(~pl.col("recurs"))["program"].implode()
    return [side.with_columns(recurs=~pl.col("program").is_in(rare)) for side in counts]


def _main_count(counts: pl.DataFrame) -> int:
    main = counts.filter(pl.col("per_step") == 1.0)["executions"]
    return int(main[0]) if len(main) else 0


def _means(spent: pl.DataFrame, counts: pl.DataFrame) -> dict[str, _Mean]:
    """Time per step by key: the sum over programs of the mean time in an execution, times the executions per step."""
    runs = spent.group_by("key", *EXECUTION).agg(pl.col("ns").sum())
    sums = runs.group_by("key", "program").agg(total=pl.col("ns").sum(), squares=(pl.col("ns") ** 2).sum())
    parts: dict[str, list[_Mean]] = {}
    for key, _, total, squares, n, per_step in sums.join(counts.drop("recurs"), on="program").iter_rows():
        mean = total / n  # an execution in which it did not run counts as 0
        part = _Mean(mean * per_step, 0.0, None)
        if n > 1:
            variance = max(squares - n * mean**2, 0.0) / (n - 1) / n
            part = _Mean(mean * per_step, variance * per_step**2, n - 1)
        parts.setdefault(key, []).append(part)
    return {key: _sum(means) for key, means in parts.items()}


def _sum(means: Sequence[_Mean]) -> _Mean:
    """The sum of independent means, with the degrees of freedom by Welch and Satterthwaite."""
    ns, variance = sum(mean.ns for mean in means), sum(mean.variance for mean in means)
    freedoms = [mean.freedom for mean in means if mean.freedom is not None]
    if len(freedoms) < len(means):
        return _Mean(ns, variance, None)
    terms = sum(mean.variance**2 / freedom for mean, freedom in zip(means, freedoms, strict=True))
    return _Mean(ns, variance, variance**2 / terms if terms > 0 else min(freedoms))


def _find_interval(before: _Mean | None, after: _Mean | None) -> tuple[float | None, float | None]:
    """The bounds of the difference; None if the spread of a side is unknown."""
    from scipy.special import stdtrit

    means = [mean for mean in (before, after) if mean is not None]
    both = _sum(means)
    if both.freedom is None:
        return None, None
    delta = (after.ns if after else 0.0) - (before.ns if before else 0.0)
    margin = float(stdtrit(both.freedom, (1 + CONFIDENCE) / 2)) * sqrt(both.variance)
    return delta - margin, delta + margin


def _rank(before: Mapping[str, _Mean], after: Mapping[str, _Mean]) -> tuple[Change, ...]:
    changes = []
    for key in before.keys() | after.keys():
        old, new = before.get(key), after.get(key)
        low, high = _find_interval(old, new)
        changes.append(
            Change(
                name=key,
                before_ns=None if old is None else old.ns,
                after_ns=None if new is None else new.ns,
                low_ns=low,
                high_ns=high,
            )
        )
    return tuple(sorted(changes, key=lambda change: (-abs(change.delta_ns), change.name)))


def _describe(change: Change, *sources: SourceOf) -> Change:
    """The change of a line, with a readable name and the text of the line."""
    file, line, function = change.name.split("\0")
    text = next((text for source_of in sources if (text := source_of(file, int(line)))), None)
    return replace(change, name=f"{file}:{line}", function=function, source=text)


def _warnings(old: Tables, new: Tables, counts: list[pl.DataFrame]) -> Iterable[str]:
    for name, tables, count in (("A", old, counts[0]), ("B", new, counts[1])):
        if tables.executions.is_empty():
            yield f"{name} records no executions of programs: nothing can be compared."
        elif _main_count(count) < 2:
            yield f"{name} has fewer than two executions of its main program after warm-up: no confidence interval."
