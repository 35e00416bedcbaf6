"""Matching of programs across ranks.

In: the programs and instructions of one rank after the other. Out: one id for the programs that are the same. Programs
of the same name are the same if they agree in one of these, tried in this order:

1. `fingerprint`: XLA's own, of the program before scheduling;
2. `structure`: names, opcodes, shapes and computations of all instructions. Autotuning changes the fingerprint if it
   chose other tiles, which are in `backend_config` and not part of the structure;
3. `collectives`: opcodes and sizes of the communication, in order. If autotuning chose a library for a matrix product
   on one rank and a kernel of XLA's on another, the instructions differ, but never the data that the ranks exchange.

Programs of one rank stay separate even if they are equal: a program that is compiled twice has two ids on every rank.
Differences are reported.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import polars as pl

from nightjar_profiling.hlo.collective_kinds import KINDS

Level = Literal["fingerprint", "structure", "collectives"]
LEVELS: tuple[Level, ...] = ("fingerprint", "structure", "collectives")
STRUCTURE = ("name", "opcode", "computation", "bytes")
NO_HLO = "no HLO"
SHOWN = 4  # ranks and instructions named in a warning


@dataclass(slots=True)
class _Reference:
    """A program as recorded on the first rank that has it, and how other ranks differ."""

    name: str
    structure: str
    instructions: frozenset[str]
    variants: dict[str, str] = field(default_factory=dict)  # fingerprint -> first rank that has it
    differing: set[str] = field(default_factory=set)  # instructions that only some ranks have


class ProgramMatcher:
    """Common ids for the programs of all ranks, which are added one after the other."""

    def __init__(self) -> None:
        self._references: dict[int, _Reference] = {}
        self._by_identity: dict[tuple[Level, str, str], list[int]] = defaultdict(list)

    def add(self, rank: str, programs: pl.DataFrame, instructions: pl.DataFrame) -> dict[int, int]:
        """Adds a rank.

        Returns:
            From the rank's program ids to the common ids; an id that is still free is kept.
        """
        identities = _identify(programs, instructions)
        ids: dict[int, int] = {}
        for level in LEVELS:
            for number, name in programs.select("program_id", "name").iter_rows():
                identity = identities[level].get(number)
                if number in ids or not identity:
                    continue
                candidates = self._by_identity[level, name, identity]
                match = next((candidate for candidate in candidates if candidate not in ids.values()), None)
                if match is not None:
                    ids[number] = match
        for number, name, fingerprint in programs.select("program_id", "name", "fingerprint").iter_rows():
            structure = identities["structure"][number]
            if number not in ids:
                ids[number] = number
                if number in self._references:
                    ids[number] = max([*self._references, *ids.values()]) + 1
                self._references[ids[number]] = _Reference(name, structure, _names(instructions, number))
            reference = self._references[ids[number]]
            reference.variants.setdefault(fingerprint or "", rank)
            if structure != reference.structure:
                reference.differing |= reference.instructions ^ _names(instructions, number)
            for level in LEVELS:
                same = self._by_identity[level, name, identities[level].get(number, "")]
                if ids[number] not in same:
                    same.append(ids[number])
        return ids

    def differing(self, program_id: int) -> frozenset[str]:
        """Instructions that a later rank has and the program's first rank does not."""
        reference = self._references[program_id]
        return frozenset(reference.differing - reference.instructions)

    def warnings(self) -> Iterator[str]:
        """Differences between the ranks, one sentence per program."""
        for reference in self._references.values():
            if len(reference.variants) < 2:
                continue
            ranks = ", ".join([*reference.variants.values()][:SHOWN])
            summary = f"{reference.name}: {len(reference.variants)} variants"
            if not reference.differing:
                yield f"{summary} of one structure, chosen by autotuning; first seen on {ranks}."
            else:
                examples = ", ".join(sorted(reference.differing)[:SHOWN])
                yield (
                    f"{summary} with the same collectives, first seen on {ranks}: "
                    f"{len(reference.differing)} instructions are not on all ranks, such as {examples}."
                )


def _identify(programs: pl.DataFrame, instructions: pl.DataFrame) -> dict[Level, dict[int, str]]:
    """By level and program, its identity; a program without HLO has only its name."""
    structures = _digests(instructions, STRUCTURE)
    communicating = instructions.filter(pl.col("opcode").str.strip_suffix("-start").is_in(list(KINDS)))
    fingerprints = programs.filter(pl.col("fingerprint").fill_null("") != "").select("program_id", "fingerprint")
    without_hlo = dict.fromkeys(set(programs["program_id"]) - structures.keys(), NO_HLO)
    return {
        "fingerprint": dict(fingerprints.iter_rows()),
        "structure": structures | without_hlo,
        "collectives": _digests(communicating, ("opcode", "bytes")),
    }


def _names(instructions: pl.DataFrame, program_id: int) -> frozenset[str]:
    return frozenset(instructions.filter(pl.col("program_id") == program_id)["name"])


def _digests(instructions: pl.DataFrame, columns: tuple[str, ...]) -> dict[int, str]:
    hashed = instructions.select("program_id", digest=pl.struct(columns).hash(seed=0))
    digests = hashed.group_by("program_id").agg(pl.col("digest").sort()).with_columns(pl.col("digest").hash(seed=0))
    return {number: str(digest) for number, digest in digests.iter_rows()}
