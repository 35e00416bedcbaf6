"""Which program, line and instruction of one capture is which of another, when the code between them has changed?

In: the tables of two captures, and the source text of a line where it is known. Out: keys that are equal on both sides:

- program: one of the same fingerprint; else of the same name, in the order in which they take time.
- line: of two files of one name, by function and text of the line, so that lines above it may come and go; of lines
that
  say the same in a function, the first is the first. What is left on both sides in a function, as many here as there,
  was rewritten: they are matched in order. Without text, the line number counts.
- instruction: by name in programs of the same fingerprint; else by opcode, name in the program (`op_name`) and line,
the
  n-th of that kind for the n-th.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

import polars as pl

from nightjar_profiling.capture_folder.tables import Tables

SourceOf = Callable[[str, int], str | None]


@dataclass(frozen=True, slots=True, order=True)
class Line:
    """A Python line; `file` and `line` are those of the later capture where both have it."""

    file: str
    line: int
    function: str


def match_programs(before: Tables, after: Tables) -> dict[int, int]:
    """From program ids of the later capture to those of the earlier."""
    found: dict[int, int] = {}
    for column in ("fingerprint", "name"):
        waiting: dict[str, list[int]] = defaultdict(list)
        for number, key in _by_time(before, column):
            if number not in found.values():
                waiting[key].append(number)
        for number, key in _by_time(after, column):
            if number not in found and waiting[key]:
                found[number] = waiting[key].pop(0)
    return found


def _by_time(tables: Tables, column: str) -> list[tuple[int, str]]:
    """Programs that ran and what they are matched by, largest device time first."""
    times = tables.ops.group_by("program_id").agg(pl.col("duration_ns").sum())
    ran = tables.programs.unique("program_id").join(times, on="program_id", how="inner")
    return list(
        ran.sort("duration_ns", "program_id", descending=[True, False]).select("program_id", column).iter_rows()
    )


def match_lines(
    before: list[Line], after: list[Line], source_before: SourceOf, source_after: SourceOf
) -> dict[Line, Line]:
    """From lines of the earlier capture to those of the later."""
    pairs: dict[Line, Line] = {}
    theirs, ours = _by_function(before), _by_function(after)
    for place in theirs.keys() & ours.keys():
        old, new = theirs[place], ours[place]
        texts = _numbered(new, source_after)
        for line, key in _numbered(old, source_before).items():
            match = next((other for other, other_key in texts.items() if other_key == key), None)
            if match is not None:
                pairs[line] = match
                del texts[match]
        old_left = [line for line in old if line not in pairs]
        if len(old_left) == len(texts):
            pairs.update(zip(old_left, texts, strict=True))
    return pairs


def _by_function(lines: list[Line]) -> dict[tuple[str, str], list[Line]]:
    found: dict[tuple[str, str], list[Line]] = defaultdict(list)
    for line in sorted(lines):
        found[PurePosixPath(line.file).name, line.function].append(line)
    return found


def _numbered(lines: list[Line], source_of: SourceOf) -> dict[Line, tuple[str | int, int]]:
    """What each line says, or its number where that is not known; and which of the lines that say so it is."""
    seen: Counter[str | int] = Counter()
    found = {}
    for line in lines:
        text = source_of(line.file, line.line) or line.line
        found[line] = (text, seen[text])
        seen[text] += 1
    return found


def instruction_keys(tables: Tables, same: Mapping[int, bool], lines: pl.DataFrame) -> pl.DataFrame:
    """What every instruction that ran is matched by.

    Args:
        tables: of one of the captures.
        same: for each program whether the other capture has one of the same fingerprint.
        lines: `program_id`, `frame_id`, `line_key`: what a frame's line is matched by.

    Returns:
        Columns: `program_id`, `instruction`, `key`.
    """
    key = ["program_id", "instruction"]
    roots = tables.attribution.filter(pl.col("root_weight") > 0).unique(key, keep="first", maintain_order=True)
    known = tables.instructions.select("program_id", "opcode", "op_name", instruction=pl.col("name"))
    ran = (
        roots.join(known, on=key, how="left", maintain_order="left")
        .join(lines, on=["program_id", "frame_id"], how="left", maintain_order="left")
        .join(tables.ops.group_by(key).agg(pl.col("start_ns").min()), on=key, how="inner", maintain_order="left")
        .sort("start_ns", *key)
    )
    parts = [pl.col(name).cast(pl.String).fill_null("") for name in ("opcode", "op_name", "line_key")]
    shape = pl.concat_str(parts, separator="|")
    nth = pl.int_range(pl.len()).over("program_id", shape).cast(pl.String)
    is_same = pl.col("program_id").replace_strict(dict(same), default=False, return_dtype=pl.Boolean)
    named = pl.when(is_same).then("instruction").otherwise(pl.concat_str([shape, nth], separator="|"))
    return ran.select(*key, key=named)
