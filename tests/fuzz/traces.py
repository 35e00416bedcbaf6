"""The readers of traces: for each kind a function that reads bytes as such, and small valid inputs to begin with.

Checksums would refuse nearly all that a fuzzer changes in a zip or xz file, so the target `member` changes what is
inside: the first byte of an input says which file of a valid archive the rest replaces, and whether it is compressed.
"""

import lzma
import sqlite3
import tempfile
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path

from nightjar_profiling.attribution.attribute import attribute
from nightjar_profiling.hlo.collective_kinds import find_collectives
from nightjar_profiling.hlo.hlo import read_program
from nightjar_profiling.hlo.lowered import read_lowered
from nightjar_profiling.pipeline.ingest import make_tables
from nightjar_profiling.readers.nsys.nsys_export import read_sqlite
from nightjar_profiling.readers.nsys_jax import nsys_jax
from nightjar_profiling.readers.xplane import xplane
from tests.profiling.builders import TRAINING, hlo_proto, training_trace
from tests.profiling.nsys_builders import STEP, Host, archive_files, launcher, write_archive
from tests.profiling.nsys_sqlite_builder import training_export

SCRATCH = Path(tempfile.mkdtemp(prefix="nightjar-fuzz-"))
COMPRESSED = 0x80  # bit of a member's first byte: the rest is compressed by xz before it goes in
PROGRAMS = [(7, hlo_proto(TRAINING))]
HOST = [Host(number=1, name="TSL:XlaCompile:#module=jit_step#", start=0, duration=9)]
MEMBERS = archive_files(host=HOST, threads=[launcher(STEP[0].tid, 0, 0)], programs=PROGRAMS)


def small_lowered() -> Iterable[bytes]:
    """A program that names its entry, as programs before optimizations do."""
    proto = hlo_proto(TRAINING)
    proto.hlo_module.entry_computation_id = proto.hlo_module.computations[-1].id
    yield proto.SerializeToString()


def fuzz_hlo(data: bytes) -> None:
    program = read_program(data, 1, "fuzz")
    attribute(program, program.instructions)
    find_collectives(program)


def small_sqlite() -> Iterable[bytes]:
    path = training_export().write(SCRATCH / "small.sqlite")
    with closing(sqlite3.connect(path, isolation_level=None)) as base:
        base.execute("PRAGMA page_size = 512")
        base.execute("VACUUM")
    return [path.read_bytes()]


def fuzz_member(data: bytes) -> None:
    if not data:
        return
    name = sorted(MEMBERS)[(data[0] & ~COMPRESSED) % len(MEMBERS)]
    inside = lzma.compress(data[1:]) if data[0] & COMPRESSED else data[1:]
    make_tables(nsys_jax.read_raw(write_archive(SCRATCH / "member.zip", {**MEMBERS, name: inside})))


def members() -> Iterable[bytes]:
    for number, name in enumerate(sorted(MEMBERS)):
        packed = name.endswith(".xz")
        yield bytes([number | COMPRESSED * packed]) + (lzma.decompress(MEMBERS[name]) if packed else MEMBERS[name])


def write(name: str, data: bytes) -> Path:
    path = SCRATCH / name
    path.write_bytes(data)
    return path


TARGETS: dict[str, tuple[Callable[[bytes], object], Callable[[], Iterable[bytes]]]] = {
    "xplane": (
        lambda data: xplane.read_raw(write("fuzz.xplane.pb", data)),
        lambda: [training_trace().space.SerializeToString()],
    ),
    "lowered": (lambda data: read_lowered(data, "fuzz"), small_lowered),
    "hlo": (fuzz_hlo, lambda: [hlo_proto(TRAINING).SerializeToString()]),
    "sqlite": (lambda data: make_tables(read_sqlite(write("fuzz.sqlite", data))), small_sqlite),
    "archive": (
        lambda data: make_tables(nsys_jax.read_raw(write("fuzz.zip", data))),
        lambda: [write_archive(SCRATCH / "valid.zip", MEMBERS).read_bytes()],
    ),
    "member": (fuzz_member, members),
}
