"""Optimized HLO from XLA's dump folders.

In: names of files and their bytes, as `XLA_FLAGS=--xla_dump_to=... --xla_dump_hlo_as_proto` writes them
(`module_0040.jit_step.sm_9.0_gpu_after_optimizations.hlo.pb`), plain or compressed with xz. Out: the serialized
programs by id, decoded on first access.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from nightjar_profiling.bytes.xz import MAGIC, decompress
from nightjar_profiling.errors import InputError
from nightjar_profiling.hlo.hlo import Program, parse_proto, read_program

OPTIMIZED = re.compile(r"module_(\d+)\.(.+)after_optimizations\.hlo\.pb(?:\.xz)?")
TRUNCATED = "the program may have been killed during the dump: dump again, or delete this file to read the others"
LARGEST_BYTES = 1 << 30  # of one decompressed module: 100k instructions take 20 MB


@dataclass(frozen=True, slots=True, kw_only=True)
class Dumped:
    """A serialized HloProto."""

    data: bytes
    name: str
    fingerprint: str
    where: str


def dumped_id(name: str) -> int | None:
    """The program id in the name of an optimized HLO file; None for other names.

    >>> dumped_id("module_0040.jit_step.sm_9.0_gpu_after_optimizations.hlo.pb.xz")
    40
    >>> dumped_id("module_0040.jit_step.before_optimizations.hlo.pb.xz")
    """
    match = OPTIMIZED.fullmatch(name)
    if match is None:
        return None
    return int(match[1])


def read_dumped(data: bytes, where: str) -> Dumped:
    """Reads the name and the fingerprint of a module."""
    if data.startswith(MAGIC):
        data = decompress(data, where, LARGEST_BYTES)
    module = parse_proto(data, where, TRUNCATED).hlo_module
    if not module.name:
        raise InputError(f"{where}: contains no HLO module ({len(data)} bytes).", TRUNCATED)
    fingerprint = module.frontend_attributes.map.get("fingerprint_before_lhs", "")
    return Dumped(data=data, name=module.name, fingerprint=fingerprint, where=where)


class LazyPrograms(Mapping[int, Program]):
    """Programs by id, each decoded on first access."""

    def __init__(self, dumped: Mapping[int, Dumped]) -> None:
        self._dumped = dict(dumped)
        self._read: dict[int, Program] = {}

    def __getitem__(self, number: int) -> Program:
        if number not in self._read:
            dumped = self._dumped[number]
            self._read[number] = read_program(dumped.data, number, dumped.where)
        return self._read[number]

    def __iter__(self) -> Iterator[int]:
        return iter(self._dumped)

    def __len__(self) -> int:
        return len(self._dumped)


def read_dump_folder(folder: Path) -> dict[int, Dumped]:
    """The programs of a dump folder; empty if the folder does not exist."""
    if not folder.is_dir():
        return {}
    return read_dump((path.name, path.read_bytes) for path in sorted(folder.iterdir()) if path.is_file())


def read_dump(files: Iterable[tuple[str, Callable[[], bytes]]]) -> dict[int, Dumped]:
    """The programs among named files."""
    numbered = ((dumped_id(name), name, data) for name, data in files)
    return {number: read_dumped(data(), name) for number, name, data in numbered if number is not None}
