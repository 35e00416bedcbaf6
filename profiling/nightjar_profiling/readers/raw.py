"""What does every reader hand out, whichever profiler wrote the file?

In: what one or more readers made of raw traces. Out: a `Raw`: the tables that the trace itself fills, and the compiled
programs, from which the tables `programs`, `instructions` and `frames` and the attribution are made. A table that a
trace says nothing about is absent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import polars as pl

from nightjar_profiling.hlo.hlo import Program

Placing = Literal["numbered", "placed"]

NAMELESS = "The GPUs have no names here, and the roofline no peak."  # where the table that tells them is damaged


@dataclass(frozen=True, slots=True, kw_only=True)
class Raw:
    """What a raw trace holds.

    Attributes:
        tables: by name, with the columns of `tables.SCHEMAS`.
        programs: by program id.
        warnings: what is missing or doubtful.
        placed: by program, the instructions that the trace does not name with their kernels, and how the reader found
            them: `numbered`, `placed` (see `attribute`).
        devices: what each device that ran ops is, as JAX would call it; empty where the trace does not tell.
    """

    tables: Mapping[str, pl.DataFrame]
    programs: Mapping[int, Program]
    warnings: tuple[str, ...] = ()
    placed: Mapping[int, Mapping[str, Placing]] = field(default_factory=dict)
    devices: tuple[str, ...] = ()


def merge_raw(parts: Iterable[Raw]) -> Raw:
    """One `Raw` of several ranks; a program whose id is taken by one with another fingerprint gets a free id."""
    parts = list(parts)
    if len(parts) == 1:  # whose programs need not be decoded
        return parts[0]
    programs: dict[int, Program] = {}
    placed: list[tuple[int, Mapping[str, Placing]]] = []
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
        placed += [(moved.get(number, number), names) for number, names in part.placed.items()]
        for name, table in part.tables.items():
            if moved and "program_id" in table.columns:
                table = table.with_columns(pl.col("program_id").replace(moved))
            tables.setdefault(name, []).append(table)
        warnings += part.warnings
    return Raw(
        tables={name: pl.concat(found) for name, found in tables.items()},
        programs=programs,
        warnings=tuple(dict.fromkeys(warnings)),
        placed=merge_placings(placed),
        devices=tuple(kind for part in parts for kind in part.devices),
    )


def name_devices(kinds: Iterable[str | None], ops: pl.DataFrame) -> tuple[str, ...]:
    """One name for each device that ran ops, where the GPUs of the machine are all of one kind; else none.

    Args:
        kinds: of the machine's GPUs, of which a program may use a part, numbered in an order of its own.
        ops: as in `tables.SCHEMAS`.
    """
    names = set(kinds)
    name = names.pop() if len(names) == 1 else None
    return () if name is None else (name,) * ops.select("rank", "device").n_unique()


def merge_placings(parts: Iterable[tuple[int, Mapping[str, Placing]]]) -> dict[int, dict[str, Placing]]:
    """Those of all parts by program; of an instruction found in both ways the weaker."""
    found: dict[int, dict[str, Placing]] = {}
    for number, names in parts:
        mine = found.setdefault(number, {})
        mine |= {name: "placed" if mine.get(name) == "placed" else how for name, how in names.items()}
    return found
