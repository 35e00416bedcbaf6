"""A gzipped pprof profile: runs and device time per device, instruction and stack.

In: tables. Out: the file. The innermost location of a stack is the HLO instruction; labels hold its opcode, program,
rank and device, so that `pprof -tagfocus` and `-tagshow` work.

Source: google/pprof:proto/profile.proto, google/pprof:doc/README.md
"""

from __future__ import annotations

import gzip

from nightjar_profiling.attribution.stacks import Site
from nightjar_profiling.capture_folder.tables import Tables
from nightjar_profiling.export.samples import Sample, find_samples
from nightjar_profiling.protos import pprof_pb2


def render_pprof(tables: Tables, mark: str = "") -> bytes:
    """The bytes of the file; deterministic."""
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
