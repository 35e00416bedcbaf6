"""Which program of one rank is which of another?

In: the programs and instructions of one rank after the other. Out: one id for the programs that are the same. Of the
programs of one name, those are the same that agree in the first of

1. `fingerprint`: XLA's own, of the program before scheduling;
2. `structure`: names, opcodes, shapes and computations of all instructions. Autotuning changes the fingerprint where it
   chose other tiles, which lie in `backend_config` and are no part of this;
3. `collectives`: opcodes and sizes of what communicates, in order. Autotuning that gave a product to a library on one
   rank and to a kernel of XLA's own on another changes instructions, but never what the ranks exchange.

Programs of one rank stay apart however equal they are: one that is compiled twice has two ids on every rank. What
differs is reported.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

import polars as pl

from nightjar_profiling.capture_folder.tables import Row
from nightjar_profiling.hlo.collective_kinds import KINDS

Level = Literal["fingerprint", "structure", "collectives"]
LEVELS: tuple[Level, ...] = ("fingerprint", "structure", "collectives")
STRUCTURE = ("name", "opcode", "computation", "bytes")
NO_HLO = "no HLO"
NOTHING = frozenset[str]()
SHOWN = 4  # ranks and instructions named in a warning


@dataclass(slots=True)
class _Known:
    """A program as the first rank that has it shows it, and where it looks otherwise."""

    name: str
    structure: str
    instructions: frozenset[str]
    variants: dict[str, str] = field(default_factory=dict)  # fingerprint to the first rank that has it
    differing: set[str] = field(default_factory=set)  # instructions that only some ranks have


class ProgramMatcher:
    """Common ids for the programs of many ranks, taken in one rank after the other."""

    def __init__(self) -> None:
        self._known: dict[int, _Known] = {}
        self._by_face: dict[tuple[Level, str, str], list[int]] = defaultdict(list)

    def add(self, rank: str, programs: pl.DataFrame, instructions: pl.DataFrame) -> dict[int, int]:
        """Takes in a rank.

        Args:
            rank: as warnings name it.
            programs: its table.
            instructions: its table.

        Returns:
            The common id by the rank's own; an own id that is free stays.
        """
        faces = _faces(programs, instructions)
        found: dict[int, int] = {}
        for level in LEVELS:
            for number, name in programs.select("program_id", "name").iter_rows():
                same = self._by_face[level, name, faces[level].get(number, "")]
                free = (one for one in same if one not in found.values())
                if number not in found and faces[level].get(number) and (match := next(free, None)) is not None:
                    found[number] = match
        for number, name, fingerprint in programs.select("program_id", "name", "fingerprint").iter_rows():
            if number not in found:
                found[number] = number if number not in self._known else max([*self._known, *found.values()]) + 1
                structure, names = faces["structure"][number], _names(instructions, number)
                self._known[found[number]] = _Known(name, structure, names)
            known = self._known[found[number]]
            known.variants.setdefault(fingerprint or "", rank)
            if faces["structure"][number] != known.structure:
                known.differing |= known.instructions ^ _names(instructions, number)
            for level in LEVELS:
                same = self._by_face[level, name, faces[level].get(number, "")]
                if found[number] not in same:
                    same.append(found[number])
        return found

    def describe(self, moved: Mapping[int, int], programs: pl.DataFrame, instructions: pl.DataFrame) -> list[Row]:
        """Rows of the table `variants`, but for the rank: its programs, and how they differ from the first rank's.

        Args:
            moved: what `add` returned for it.
            programs: its table.
            instructions: its table.
        """
        rows: list[Row] = []
        for number, fingerprint in programs.select("program_id", "fingerprint").iter_rows():
            known, names = self._known[moved[number]], None
            if known.differing or len(known.variants) > 1:
                names = _names(instructions, number)
            missing, added = (known.instructions - names, names - known.instructions) if names else (NOTHING, NOTHING)
            rows.append(
                {
                    "program_id": moved[number],
                    "fingerprint": fingerprint,
                    "instructions": len(known.instructions if names is None else names),
                    "missing": _shorten(missing),
                    "added": _shorten(added),
                }
            )
        return rows

    def differing(self, program_id: int) -> frozenset[str]:
        """Instructions that a later rank has and the one that showed the program first lacks."""
        known = self._known[program_id]
        return frozenset(known.differing - known.instructions)

    def doubts(self) -> Iterator[str]:
        """What differs between the ranks, one sentence per program."""
        for one in self._known.values():
            if len(one.variants) < 2:
                continue
            ranks = ", ".join([*one.variants.values()][:SHOWN])
            if not one.differing:
                yield (
                    f"{one.name}: {len(one.variants)} variants of one structure, as autotuning chose, first on {ranks}."
                )
            else:
                examples = ", ".join(sorted(one.differing)[:SHOWN])
                yield (
                    f"{one.name}: {len(one.variants)} variants with the same collectives, first on {ranks}: "
                    f"{len(one.differing)} instructions are not on all ranks, such as {examples}."
                )


def _faces(programs: pl.DataFrame, instructions: pl.DataFrame) -> dict[Level, dict[int, str]]:
    """By level and program what it is known by; a program without HLO only by its name."""
    structures = _digests(instructions, STRUCTURE)
    talking = instructions.filter(pl.col("opcode").str.strip_suffix("-start").is_in(list(KINDS)))
    prints = programs.filter(pl.col("fingerprint").fill_null("") != "").select("program_id", "fingerprint")
    bare = dict.fromkeys(set(programs["program_id"]) - structures.keys(), NO_HLO)
    return {
        "fingerprint": dict(prints.iter_rows()),
        "structure": structures | bare,
        "collectives": _digests(talking, ("opcode", "bytes")),
    }


def _shorten(names: Collection[str]) -> str | None:
    """The first few names; None where there are none."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(sorted(names)[:SHOWN]) + more if names else None


def _names(instructions: pl.DataFrame, program_id: int) -> frozenset[str]:
    return frozenset(instructions.filter(pl.col("program_id") == program_id)["name"])


def _digests(instructions: pl.DataFrame, columns: tuple[str, ...]) -> dict[int, str]:
    """By program a digest of its instructions."""
    hashed = instructions.select("program_id", digest=pl.struct(columns).hash(seed=0))
    digests = hashed.group_by("program_id").agg(pl.col("digest").sort()).with_columns(pl.col("digest").hash(seed=0))
    return {number: str(digest) for number, digest in digests.iter_rows()}
