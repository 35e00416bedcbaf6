"""Samples of a capture, as a sampling profiler would report them, and their exports: folded stacks and pprof.

In: tables. Out: one `Sample` per device, instruction and stack; their times sum to the ops' total, exact to the
nanosecond. A mark, for example that the times are estimates, becomes the outermost frame of every stack.

Source: https://github.com/brendangregg/FlameGraph (stackcollapse*.pl); google/pprof:proto/profile.proto
"""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath

import polars as pl

from nightjar_profiling.attribution.apportion import DEVICE, INSTRUCTION, apportion_time
from nightjar_profiling.attribution.stacks import Site, StackTree, build_stacks
from nightjar_profiling.capture_folder.tables import Tables
from nightjar_profiling.protos import pprof_pb2

NO_STACK_SITE: Site = ("", 0, "no Python stack")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Device time of an instruction on a device under a stack.

    Attributes:
        path: sites from the outermost frame to the innermost.
        instruction: its name, or the name of the kernel if there is no instruction.
        count: runs of the instruction; 0 except on the first of its samples.
    """

    rank: int
    device: int
    path: tuple[Site, ...]
    instruction: str
    opcode: str
    program: str
    count: int
    duration_ns: int


def find_samples(tables: Tables, mark: str = "") -> Iterator[Sample]:
    """The samples, by device, largest instruction first."""
    tree, outermost = build_stacks(tables), (("", 0, mark),) if mark else ()
    names = tables.programs.select("program_id", pl.col("name").alias("program"))
    opcodes = tables.instructions.select("program_id", pl.col("name").alias("instruction"), "opcode")
    kernels = tables.ops.group_by(*DEVICE, *INSTRUCTION).agg(pl.col("kernel").first())
    keys = [*DEVICE, *INSTRUCTION]
    shares = (
        apportion_time(tables)
        .join(names, on="program_id", how="left")
        .join(opcodes, on=list(INSTRUCTION), how="left")
        .join(kernels, on=keys, how="left", nulls_equal=True)
        .sort(*DEVICE, "duration_ns", *INSTRUCTION, "frame_id", descending=[False, False, True] + 3 * [False])
        .with_columns(first=pl.int_range(pl.len()).over(keys) == 0)
    )
    for row in shares.iter_rows(named=True):
        yield Sample(
            rank=row["rank"],
            device=row["device"],
            path=(*outermost, *_path(tree, row["program_id"], row["frame_id"])),
            instruction=row["instruction"] or row["kernel"] or "unknown op",
            opcode=row["opcode"] or "no instruction",
            program=row["program"] or "no program",
            count=row["count"] if row["first"] else 0,
            duration_ns=row["duration_ns"],
        )


def _path(tree: StackTree, program_id: int | None, frame_id: int | None) -> tuple[Site, ...]:
    path = tree.path(tree.node_of(program_id, frame_id))
    return tuple(tree.places[site] for site in path) or (NO_STACK_SITE,)


FORBIDDEN = str.maketrans({";": ",", "\n": " ", "\r": " "})


def render_folded(tables: Tables, mark: str = "") -> bytes:
    """Stacks as flamegraph.pl and inferno read them, summed over devices: `outermost;...;instruction nanoseconds`."""
    times = Counter[str]()
    for sample in find_samples(tables, mark):
        times[";".join([*map(site_label, sample.path), sample.instruction.translate(FORBIDDEN)])] += sample.duration_ns
    return "".join(f"{stack} {ns}\n" for stack, ns in times.items() if ns).encode("utf-8", "replace")


def site_label(site: Site) -> str:
    """`function (file.py:3)`.

    >>> site_label(("/home/me/a;b.py", 3, "loss"))
    'loss (a,b.py:3)'
    """
    file, line, function = site
    label = function
    if file:
        label = f"{function} ({PurePath(file).name}:{line})"
    return label.translate(FORBIDDEN)


def render_pprof(tables: Tables, mark: str = "") -> bytes:
    """A gzipped pprof profile: runs and device time per device, instruction and stack; deterministic."""
    writer = _Writer()
    for sample in find_samples(tables, mark):
        writer.add(sample)
    writer.profile.duration_nanos = _span_ns(tables)
    return gzip.compress(writer.finish(), mtime=0)


def _span_ns(tables: Tables) -> int:
    ends = (tables.ops["start_ns"] + tables.ops["duration_ns"]).max()
    starts = tables.ops["start_ns"].min()
    if isinstance(ends, int) and isinstance(starts, int):
        return int(ends) - int(starts)
    return 0


class _Writer:
    """Builds a profile; stores every string, function and location once."""

    def __init__(self) -> None:
        self.profile = pprof_pb2.Profile()
        self.strings: dict[str, int] = {"": 0}
        self.functions: dict[tuple[str, str], int] = {}
        self.locations: dict[Site, int] = {}
        for kind, unit in (("ops", "count"), ("device", "nanoseconds")):
            self.profile.sample_type.add(type=self.string(kind), unit=self.string(unit))
        self.profile.default_sample_type = self.string("device")

    def add(self, sample: Sample) -> None:
        """Adds a sample, innermost location first."""
        leaf = ("", 0, sample.instruction)
        entry = self.profile.sample.add(
            location_id=[self.location(site) for site in (leaf, *reversed(sample.path))],
            value=[sample.count, sample.duration_ns],
        )
        for key, text in (("opcode", sample.opcode), ("program", sample.program)):
            entry.label.add(key=self.string(key), str=self.string(text))
        for key, number in (("rank", sample.rank), ("device", sample.device)):
            entry.label.add(key=self.string(key), num=number)

    def string(self, text: str) -> int:
        """The index of a string in the string table."""
        clean = text.encode("utf-8", "replace").decode()
        return self.strings.setdefault(clean, len(self.strings))

    def location(self, site: Site) -> int:
        """The id of a location, counted from 1."""
        if site not in self.locations:
            file, line, function = site
            number = self.locations[site] = len(self.locations) + 1
            self.profile.location.add(id=number).line.add(function_id=self.function(file, function), line=line)
        return self.locations[site]

    def function(self, file: str, name: str) -> int:
        """The id of a function, counted from 1."""
        key = (file, name)
        if key not in self.functions:
            number = self.functions[key] = len(self.functions) + 1
            text = self.string(name)
            self.profile.function.add(id=number, name=text, system_name=text, filename=self.string(file))
        return self.functions[key]

    def finish(self) -> bytes:
        self.profile.string_table.extend(self.strings)
        return self.profile.SerializeToString(deterministic=True)
