"""What does every reader hand out, whichever profiler wrote the file?

In: what one or more readers made of raw traces. Out: a `Raw`: the tables that the trace itself fills, and the compiled
programs, from which the tables `programs`, `instructions` and `frames` and the attribution are made. A table that a
trace says nothing about is absent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import polars as pl

from nightjar_profiling.readers.hlo import Program


@dataclass(frozen=True, slots=True, kw_only=True)
class Raw:
    """What a raw trace holds.

    Attributes:
        tables: by name, with the columns of `tables.SCHEMAS`.
        programs: by program id.
        warnings: what is missing or doubtful.
    """

    tables: Mapping[str, pl.DataFrame]
    programs: Mapping[int, Program]
    warnings: tuple[str, ...] = ()


def merge_raw(parts: Iterable[Raw]) -> Raw:
    """One `Raw` of several ranks; a program whose id is taken by one with another fingerprint gets a free id."""
    parts = list(parts)
    if len(parts) == 1:  # whose programs need not be decoded
        return parts[0]
    programs: dict[int, Program] = {}
    tables: dict[str, list[pl.DataFrame]] = {}
    warnings: list[str] = []
    for part in parts:
        moved: dict[int, int] = {}
        for number, program in part.programs.items():
            taken = programs.get(number)
            if taken is not None and taken.fingerprint != program.fingerprint:
                moved[number] = max(*programs, *part.programs, *moved.values()) + 1
                program = replace(program, program_id=moved[number])
            programs.setdefault(program.program_id, program)
        for name, table in part.tables.items():
            if moved and "program_id" in table.columns:
                table = table.with_columns(pl.col("program_id").replace(moved))
            tables.setdefault(name, []).append(table)
        warnings += part.warnings
    return Raw(
        tables={name: pl.concat(found) for name, found in tables.items()},
        programs=programs,
        warnings=tuple(dict.fromkeys(warnings)),
    )
