"""The comparison of two sides of captures: slowdowns, their size, and whether they are certain.

In: one or more captures on each of two sides. Out: changes of the whole, of programs, lines and instructions, ranked by
their cost.

Everything is compared by its device time in one execution of its program: the mean over devices, without warm-up
(`warmup`). So captures of different lengths can be compared. The main program is the one with the most device time. A
program that runs k times as often as the main program counts k times, and one that ran only once is not part of a step.
So all numbers are nanoseconds per execution of the main program, which is the step.

`change` decides which changes are certain. With several captures on both sides it uses the variance between captures.
If a side has only one capture, the differences between processes are unknown, and a change can be certain only if the
other side has other instructions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import polars as pl

from nightjar_profiling.analyses.compare.change import Change, Mean, add_means, average_captures, rank_changes
from nightjar_profiling.analyses.compare.diff_match import Line, SourceOf, instruction_keys, match_lines, match_programs
from nightjar_profiling.analyses.stacks import find_user_lines
from nightjar_profiling.analyses.warmup import find_steady_state
from nightjar_profiling.capture_folder.tables import Tables

EXECUTION = ["program", "execution"]
ONE_CAPTURE = (
    "{}: differences between processes are not known, so only what has other instructions is called different; "
    "give several captures of each side."
)
WORK = ("opcode", "bytes", "flops", "main_work")  # by which two instructions are the same work


@dataclass(frozen=True, slots=True, kw_only=True)
class Diff:
    """Two sides compared.

    Attributes:
        programs: by the size of the difference, largest first; so are lines and instructions.
        executions: of the main program, on each side.
        captures: on each side.
        estimates: which side never ran.
    """

    total: Change
    programs: tuple[Change, ...]
    lines: tuple[Change, ...]
    instructions: tuple[Change, ...]
    executions: tuple[int, int]
    captures: tuple[int, int]
    estimates: tuple[bool, bool]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A capture of a side: its tables, the rule for user code, its sources, and whether it ever ran."""

    tables: Tables
    is_user_code: Callable[[str], bool]
    source_of: SourceOf
    estimate: bool = False


def compare(before: Sequence[Side], after: Sequence[Side]) -> Diff:
    """Compares captures of two programs, at least one per side."""
    sides, first_after = [*before, *after], len(before)
    tables = _renumber_all([side.tables for side in sides])
    line_keys = _all_line_keys(sides, tables, first_after)
    same = _same_fingerprints(tables)
    names = [_names(table, same, keys) for table, keys in zip(tables, line_keys, strict=True)]
    shown = dict(pl.concat(names).select("key", "instruction").iter_rows())  # the later capture's name for it
    spent = [_executions(table) for table in tables]
    counts = _counts(spent)
    program_names = dict(pl.concat([t.programs for t in tables]).select("program_id", "name").iter_rows())
    single = min(len(before), len(after)) == 1

    def changes(keys: list[pl.DataFrame], on: list[str], *, once: bool = False) -> tuple[Change, ...]:
        kept = [count if once else count.filter("recurs") for count in counts]
        keyed = [table.join(key, on=on) for table, key in zip(spent, keys, strict=True)]
        means = [_means(table, count) for table, count in zip(keyed, kept, strict=True)]
        works = [_digest_work(ran, table.instructions) for ran, table in zip(keyed, tables, strict=True)]
        return rank_changes(
            average_captures(means[:first_after]),
            average_captures(means[first_after:]),
            _differing(works[:first_after], works[first_after:]) if single else None,
        )

    everything = [table.select("program").unique().with_columns(key=pl.lit("total")) for table in spent]
    by_program = [
        table.select("program").unique().with_columns(
            key=pl.col("program").replace_strict(program_names, default="no program", return_dtype=pl.String)
        )
        for table in spent
    ]  # fmt: skip
    totals = changes(everything, ["program"])
    lines = changes(line_keys, ["program", "frame_id"])
    estimates = (any(side.estimate for side in before), any(side.estimate for side in after))
    sources = [side.source_of for side in (*after, *before)]
    return Diff(
        total=totals[0] if totals else Change(name="total", before_ns=0, after_ns=0, low_ns=None, high_ns=None),
        programs=changes(by_program, ["program"], once=True),
        lines=tuple(_describe(change, *sources) for change in lines),
        instructions=tuple(
            replace(change, name=shown[change.name]) for change in changes(names, ["program", "instruction"])
        ),
        executions=(_sum_counts(counts[:first_after]), _sum_counts(counts[first_after:])),
        captures=(len(before), len(after)),
        estimates=estimates,
        warnings=(
            *(
                f"{name} is an estimate, not a measurement: it never ran."
                for name, estimate in zip("AB", estimates, strict=True)
                if estimate
            ),
            *_warnings("A", tables[:first_after], counts[:first_after]),
            *_warnings("B", tables[first_after:], counts[first_after:]),
            *(_say_single(sides, counts) if single else ()),
        ),
    )


def _renumber_all(captures: Sequence[Tables]) -> list[Tables]:
    """The captures with the program ids of the first; those that it lacks get ids of their own."""
    numbered: list[Tables] = []
    used: set[int] = set()
    for tables in captures:
        programs: dict[int, int] = {}
        for earlier in numbered:
            for number, match in match_programs(earlier, tables).items():
                if number not in programs and match not in programs.values():
                    programs[number] = match
        for number in sorted(set(tables.programs["program_id"]) - programs.keys()) if numbered else ():
            fresh = -1 - number
            while fresh in used:
                fresh -= 1
            programs[number] = fresh
            used.add(fresh)
        numbered.append(_renumber(tables, programs) if numbered else tables)
        used.update(numbered[-1].programs["program_id"])
    return numbered


def _renumber(tables: Tables, numbers: Mapping[int, int]) -> Tables:
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
        )
    }
    return Tables(**{**{name: getattr(tables, name) for name in tables.__slots__}, **moved})


def _all_line_keys(sides: Sequence[Side], tables: Sequence[Tables], first_after: int) -> list[pl.DataFrame]:
    """Each capture's lines mapped to the lines of the first capture after."""
    lines = [find_user_lines(t, side.is_user_code) for t, side in zip(tables, sides, strict=True)]

    def match(number: int, other: int) -> dict[Line, Line]:
        pair = (_lines(lines[number]), _lines(lines[other]))
        return match_lines(*pair, sides[number].source_of, sides[other].source_of)

    across = match(0, first_after)
    keys = []
    for number, side_lines in enumerate(lines):
        if number != first_after:
            pairs = match(number, 0 if number < first_after else first_after)
        else:
            pairs = {}
        if 0 < number < first_after:
            pairs = {line: across.get(same, same) for line, same in pairs.items()}
        keys.append(_line_keys(side_lines, across if number == 0 else pairs))
    return keys


def _lines(lines: pl.DataFrame) -> list[Line]:
    return [Line(*row) for row in lines.select("file", "line", "function").unique().iter_rows()]


def _line_keys(lines: pl.DataFrame, pairs: Mapping[Line, Line]) -> pl.DataFrame:
    """`program`, `frame_id`, `key`: file, function and line, in the words of the later capture."""
    keys = []
    for program, frame, *site in lines.select("program_id", "frame_id", "file", "line", "function").iter_rows():
        line = pairs.get(Line(*site), Line(*site))
        keys.append((program, frame, f"{line.file}\0{line.line}\0{line.function}"))
    return pl.DataFrame(keys, schema={"program": pl.Int64, "frame_id": pl.Int64, "key": pl.String}, orient="row")


def _same_fingerprints(tables: Sequence[Tables]) -> dict[int, bool]:
    """For each program of several captures whether it has one fingerprint in all of them."""
    programs = pl.concat([table.programs.select("program_id", "fingerprint").unique() for table in tables])
    counted = programs.group_by("program_id").agg(pl.len(), pl.col("fingerprint").n_unique().alias("different"))
    return {number: n > 1 and different == 1 for number, n, different in counted.iter_rows()}


def _names(tables: Tables, same: Mapping[int, bool], line_keys: pl.DataFrame) -> pl.DataFrame:
    lines = line_keys.select(pl.col("program").alias("program_id"), "frame_id", pl.col("key").alias("line_key"))
    return instruction_keys(tables, same, lines).rename({"program_id": "program"})


def _executions(tables: Tables) -> pl.DataFrame:
    """Device time (`ns`, a float: shares of ops) by program, execution, instruction and frame, mean over devices."""
    run = ["rank", "device", "program_id", "execution"]
    steady = find_steady_state(tables).select(run)
    devices = steady.group_by("program_id", "execution").agg(devices=pl.len())
    spent = (
        tables.ops.join(steady, on=run, how="semi")
        .group_by("program_id", "execution", "instruction")
        .agg(ns=pl.col("duration_ns").sum())
        .join(devices, on=["program_id", "execution"])
    )
    shares = tables.attribution.select("program_id", "instruction", "frame_id", "weight")
    split = spent.join(shares.filter(pl.col("weight") > 0), on=["program_id", "instruction"], how="left")
    share = pl.col("weight").fill_null(1.0) / pl.col("devices")
    return split.select(
        pl.col("program_id").alias("program"), "execution", "instruction", "frame_id", ns=pl.col("ns") * share
    )


def _counts(sides: list[pl.DataFrame]) -> list[pl.DataFrame]:
    """For each capture, by program: `executions`; `per_step`, executions for one of the main program; and `recurs`.

    The main program is the same in all captures if those that ran in all are half of the work that each repeats, else
    the largest of each. A program recurs unless it ran once in some capture while the main program ran more often: an
    initialization, which is not part of a step.
    """
    sums = [side.group_by("program").agg(n=pl.col("execution").n_unique(), ns=pl.col("ns").sum()) for side in sides]
    shared = sums[0]
    for other in sums[1:]:
        shared = shared.join(other.select("program"), on="program", how="semi")
    for runs in (side.filter(pl.col("n") > 1) for side in sums):
        of_all = runs.join(shared, on="program", how="semi")["ns"].sum()
        shared = shared if 2 * of_all >= runs["ns"].sum() else shared.clear()
    mains = [(shared if shared.height else runs).sort("ns", "program", descending=True).head(1) for runs in sums]
    counts = []
    for runs, main in zip(sums, mains, strict=True):
        steps = runs.join(main.select("program"), on="program", how="semi")["n"]
        count = int(steps[0]) if len(steps) else 1
        once = (pl.col("n") == 1) & (count > 1)
        counts.append(runs.select("program", executions="n", per_step=pl.col("n") / count, recurs=~once))
    rare = pl.concat(counts).filter(~pl.col("recurs"))["program"].implode()
    return [runs.with_columns(recurs=~pl.col("program").is_in(rare)) for runs in counts]


def _main_count(counts: pl.DataFrame) -> int:
    main = counts.filter(pl.col("per_step") == 1.0)["executions"]
    if len(main):
        return int(main[0])
    return 0


def _sum_counts(counts: Sequence[pl.DataFrame]) -> int:
    return sum(_main_count(count) for count in counts)


def _digest_work(keyed: pl.DataFrame, instructions: pl.DataFrame) -> dict[str, int]:
    ran = keyed.select("key", "program", "instruction").unique()
    work = instructions.select(pl.col("program_id").alias("program"), pl.col("name").alias("instruction"), *WORK)
    joined = ran.join(work, on=["program", "instruction"], how="left")
    hashed = joined.select("key", digest=pl.struct(WORK).hash(seed=0))
    digests = hashed.group_by("key").agg(pl.col("digest").sort()).with_columns(pl.col("digest").hash(seed=0))
    return dict(digests.iter_rows())


def _differing(before: Sequence[Mapping[str, int]], after: Sequence[Mapping[str, int]]) -> set[str]:
    """Keys whose instructions no capture before shares with one after."""
    keys = {key for works in (*before, *after) for key in works}
    return {key for key in keys if {works.get(key) for works in before}.isdisjoint({works.get(key) for works in after})}


def _means(spent: pl.DataFrame, counts: pl.DataFrame) -> dict[str, Mean]:
    """Time per step by key: over programs, the sum of mean times in an execution, as often as each runs in a step."""
    runs = spent.group_by("key", *EXECUTION).agg(pl.col("ns").sum())
    parts = runs.group_by("key", "program").agg(total=pl.col("ns").sum(), squares=(pl.col("ns") ** 2).sum())
    parts_by_key: dict[str, list[tuple[float, float, int]]] = {}
    for key, _, total, squares, n, per_step in parts.join(counts.drop("recurs"), on="program").iter_rows():
        mean = total / n  # an execution in which it did not run counts with 0
        if n > 1:
            spread = max(squares - n * mean**2, 0.0) / (n - 1) / n
        else:
            spread = 0.0
        parts_by_key.setdefault(key, []).append((mean * per_step, spread * per_step**2, n))
    return {key: add_means(parts) for key, parts in parts_by_key.items()}


def _describe(change: Change, *sources: SourceOf) -> Change:
    file, line, function = change.name.split("\0")
    text = next((text for source_of in sources if (text := source_of(file, int(line)))), None)
    return replace(change, name=f"{file}:{line}", function=function, source=text)


def _say_single(sides: Sequence[Side], counts: Sequence[pl.DataFrame]) -> Iterator[str]:
    if all(map(_main_count, counts)):
        yield ONE_CAPTURE.format("one capture each" if len(sides) == 2 else "one capture on a side")


def _warnings(side: str, captures: Sequence[Tables], counts: Sequence[pl.DataFrame]) -> Iterator[str]:
    if all(tables.executions.is_empty() for tables in captures):
        yield f"{side} tells no executions of programs: nothing can be compared."
    elif len(captures) == 1 and _main_count(counts[0]) < 2:
        yield f"{side} has fewer than two executions of its main program after warm-up: there is no interval."
