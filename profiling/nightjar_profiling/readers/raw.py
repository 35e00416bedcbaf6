"""Result of a reader, for every kind of raw trace.

In: the results of one or more readers. Out: a `Raw`: the tables that the trace itself fills, and the compiled programs,
from which the tables `programs`, `instructions` and `frames` and the attribution are made. Tables without data in the
trace are absent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import polars as pl

from nightjar_profiling.hlo.hlo import Program

Placing = Literal["numbered", "placed"]

NO_DEVICE_NAMES = "The GPU names are unknown, so the roofline has no peak."


@dataclass(frozen=True, slots=True, kw_only=True)
class Raw:
    """The data of a raw trace.

    Attributes:
        placed: by program, the instructions that the trace does not name with their kernels, and how the reader found
            them: `numbered`, `placed` (see `attribute`).
        foreign: the trace is of another program than XLA's, so that stacks are not to be expected.
        devices: JAX's name of each device that ran ops; empty if the trace does not name the GPUs.
    """

    tables: Mapping[str, pl.DataFrame]
    programs: Mapping[int, Program]
    warnings: tuple[str, ...] = ()
    placed: Mapping[int, Mapping[str, Placing]] = field(default_factory=dict)
    devices: tuple[str, ...] = ()
    foreign: bool = False


def merge_raw(parts: Iterable[Raw]) -> Raw:
    """Merges the data of several ranks; a program gets a free id if its id belongs to one with another fingerprint."""
    parts = list(parts)
    if len(parts) == 1:  # so that its programs need not be decoded
        return parts[0]
    programs: dict[int, Program] = {}
    placed: list[tuple[int, Mapping[str, Placing]]] = []
    tables: dict[str, list[pl.DataFrame]] = {}
    warnings: list[str] = []
    for part in parts:
        moved: dict[int, int] = {}
        for number, program in part.programs.items():
            other = programs.get(number)
            if other is not None and other.fingerprint != program.fingerprint:
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
        tables={name: pl.concat(frames) for name, frames in tables.items()},
        programs=programs,
        warnings=tuple(dict.fromkeys(warnings)),
        placed=merge_placings(placed),
        devices=tuple(kind for part in parts for kind in part.devices),
        foreign=all(part.foreign for part in parts),
    )


def name_devices(kinds: Iterable[str | None], ops: pl.DataFrame) -> tuple[str, ...]:
    """The name of each device that ran ops; empty unless all GPUs of the machine are of one kind.

    Args:
        kinds: names of the machine's GPUs. A program may use some of them and number them in another order.
    """
    names = set(kinds)
    name = names.pop() if len(names) == 1 else None
    if name is None:
        return ()
    return (name,) * ops.select("rank", "device").n_unique()


def merge_placings(parts: Iterable[tuple[int, Mapping[str, Placing]]]) -> dict[int, dict[str, Placing]]:
    """Merges placings by program; an instruction that was found in both ways counts as `placed`, the weaker."""
    merged: dict[int, dict[str, Placing]] = {}
    for number, names in parts:
        placings = merged.setdefault(number, {})
        placings |= {name: how for name, how in names.items() if placings.get(name) != "placed"}
    return merged


KEPT_BYTES = 31 << 20  # largest block whose size glibc adopts as its threshold once it is freed


def keep_freed_memory() -> None:
    """Makes glibc keep freed blocks of up to KEPT_BYTES, by mallopt(3)'s M_MMAP_THRESHOLD.

    Else each new block costs a page fault per page: a tenth of the time of reading millions of events.
    """
    np.empty(KEPT_BYTES, np.uint8)
