"""Matching of programs, lines and instructions between two captures of different code.

In: the tables of two captures, and the source text of a line if it is available. Out: keys that are equal on both
sides:

- program: by fingerprint; otherwise by name, in the order of device time.
- line: in files of the same name, by function and source text, so that lines may be added or removed above it; equal
  lines of a function are matched in order. Unmatched lines of a function, if there are equally many on both sides, were
  rewritten: they are matched in order. Without source text, the line number is used.
- instruction: by name in programs of the same fingerprint; otherwise by opcode, name in the program (`op_name`) and
  line, the n-th of a kind with the n-th; by name if the trace has no HLO.
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
    """A Python line; `file` and `line` come from the later capture if both have it."""

    file: str
    line: int
    function: str


def match_programs(before: Tables, after: Tables) -> dict[int, int]:
    """Maps program ids of the later capture to the earlier capture's."""
    pairs: dict[int, int] = {}
    for column in ("fingerprint", "name"):
        unmatched: dict[str, list[int]] = defaultdict(list)
        for number, key in _by_time(before, column):
            if number not in pairs.values():
                unmatched[key].append(number)
        for number, key in _by_time(after, column):
            if number not in pairs and unmatched[key]:
                pairs[number] = unmatched[key].pop(0)
    return pairs


def _by_time(tables: Tables, column: str) -> list[tuple[int, str]]:
    """Programs that ran, with the column to match by, largest device time first."""
    times = tables.ops.group_by("program_id").agg(pl.col("duration_ns").sum())
    ran = tables.programs.unique("program_id").join(times, on="program_id", how="inner")
    return list(
        ran.sort("duration_ns", "program_id", descending=[True, False]).select("program_id", column).iter_rows()
    )


def match_lines(
    before: list[Line], after: list[Line], source_before: SourceOf, source_after: SourceOf
) -> dict[Line, Line]:
    """Maps lines of the earlier capture to the later capture's."""
    pairs: dict[Line, Line] = {}
    old_functions, new_functions = _by_function(before), _by_function(after)
    for function in old_functions.keys() & new_functions.keys():
        old, new = old_functions[function], new_functions[function]
        unmatched = _numbered(new, source_after)
        for line, key in _numbered(old, source_before).items():
            match = next((other for other, other_key in unmatched.items() if other_key == key), None)
            if match is not None:
                pairs[line] = match
                del unmatched[match]
        old_unmatched = [line for line in old if line not in pairs]
        if len(old_unmatched) == len(unmatched):
            pairs.update(zip(old_unmatched, unmatched, strict=True))
    return pairs


def _by_function(lines: list[Line]) -> dict[tuple[str, str], list[Line]]:
    by_function: dict[tuple[str, str], list[Line]] = defaultdict(list)
    for line in sorted(lines):
        by_function[PurePosixPath(line.file).name, line.function].append(line)
    return by_function


def _numbered(lines: list[Line], source_of: SourceOf) -> dict[Line, tuple[str | int, int]]:
    """The text of each line (its number if the text is unknown), and its index among the lines with that text."""
    seen: Counter[str | int] = Counter()
    keys = {}
    for line in lines:
        text = source_of(line.file, line.line) or line.line
        keys[line] = (text, seen[text])
        seen[text] += 1
    return keys


def instruction_keys(tables: Tables, same: Mapping[int, bool], lines: pl.DataFrame) -> pl.DataFrame:
    """The key by which every instruction that ran is matched.

    Args:
        tables: of one of the captures.
        same: by program, whether the other capture has one of the same fingerprint.
        lines: `program_id`, `frame_id`, `line_key`: the key of the frame's line.

    Returns:
        Columns: `program_id`, `instruction`, `key`.
    """
    key = ["program_id", "instruction"]
    roots = tables.attribution.filter(pl.col("root_weight") > 0).unique(key, keep="first", maintain_order=True)
    instructions = tables.instructions.select("program_id", "opcode", "op_name", instruction=pl.col("name"))
    ran = (
        tables.ops.drop_nulls(key)
        .group_by(key)
        .agg(pl.col("start_ns").min())
        .join(roots, on=key, how="left")
        .join(instructions, on=key, how="left")
        .join(lines, on=["program_id", "frame_id"], how="left")
        .sort("start_ns", *key)
    )
    parts = [pl.col(name).cast(pl.String).fill_null("") for name in ("opcode", "op_name", "line_key")]
    shape = pl.concat_str(parts, separator="|")
    nth = pl.int_range(pl.len()).over("program_id", shape).cast(pl.String)
    is_same = pl.col("program_id").replace_strict(dict(same), default=False, return_dtype=pl.Boolean)
    has_name = is_same | pl.col("opcode").is_null()
    named = pl.when(has_name).then("instruction").otherwise(pl.concat_str([shape, nth], separator="|"))
    return ran.select(*key, key=named)
