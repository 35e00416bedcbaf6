"""Reader of XSpace traces.

In: an XSpace protobuf, as `jax.profiler` writes it (`*.xplane.pb`). Out: a `Raw`: the tables `ops`, `executions`,
`ranges`, `steps` and `compile` (from the capture's compile times, otherwise from XLA's annotations), and the programs
whose HLO the trace embeds or XLA dumped next to it: for `host.xplane.pb` into `host.dump`
(`XLA_FLAGS="--xla_dump_to=host.dump --xla_dump_hlo_as_proto"`).

On a GPU, an op is an event of a `Stream #n` line of a `/device:GPU:n` plane; launches on the host plane do not count.
On a TPU, it is an event of a line of XLA ops; asynchronous ops are ranges. If no device has ops, it is a thunk of
`/host:CPU`. An op that contains others (while, call, conditional) is left out, so that no time counts twice.

Source: openxla/xla:third_party/tsl/tsl/profiler/protobuf/xplane.proto, tsl/profiler/utils/xplane_schema.cc;
xla/hlo/pass/hlo_pass_pipeline.cc and jax-ml/jax:jax/_src/compiler.py (`backend_compile_and_load`), for compile times.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from nightjar_profiling.bytes.wire import Positions, WireError
from nightjar_profiling.capture_folder.tables import fill_table, make_table
from nightjar_profiling.errors import InputError
from nightjar_profiling.hlo.hlo import Program, read_program
from nightjar_profiling.hlo.hlo_dump import read_dump_folder
from nightjar_profiling.readers.annotations.compile_ranges import (
    attach_pool_ranges,
    fill_compile,
    read_compile_events,
)
from nightjar_profiling.readers.annotations.xla_ranges import find_nearest
from nightjar_profiling.readers.kernels import summarise_kernels
from nightjar_profiling.readers.projection import NONE, Calls, Ranges, project
from nightjar_profiling.readers.projection import Ops as Launched
from nightjar_profiling.readers.raw import Placing, Raw, merge_placings
from nightjar_profiling.readers.xplane.xplane_device import DEVICE, read_async, read_gpu, read_tpu
from nightjar_profiling.readers.xplane.xplane_graphs import find_control, place_nodes
from nightjar_profiling.readers.xplane.xplane_host import (
    STATS,
    Decoded,
    Launches,
    decode,
    read_launches,
    tabulate_ranges,
)
from nightjar_profiling.readers.xplane.xplane_ops import GRAPH, Ops, find_containers, sum_by_instruction, tabulate
from nightjar_profiling.readers.xplane.xplane_planes import DAMAGED, Plane, Space, read_space, text_of
from nightjar_profiling.readers.xplane.xplane_thunks import read_thunks
from nightjar_profiling.readers.xplane.xplane_values import Texts, as_int64

PROGRAM_EVENT = re.compile(r".*\((\d{1,20})\)", re.DOTALL)


ROOT = r"^(?:backend_compile(?:_and_load)?|.*Client::Compile(?:AndLoad)?)$"
POOL = re.compile(r"tf_(?:PjRtCompiler|xla-|XLA_?Compil)", re.IGNORECASE)
MODULE = r"^(.*\S) \(([\w.\-]+)\)$"


def read_raw(path: Path, rank: int = 0) -> Raw:
    """Reads a `*.xplane.pb` file."""
    space = read_space(path)
    programs = {program.program_id: program for program in _read_programs(space, path)}
    programs = {**_read_dumped(path, programs), **programs}
    try:
        hosts = [decode(plane, STATS) for plane in space.planes if plane.name.startswith("/host:")]
        launches = read_launches(hosts, find_control(programs.values()))
        devices = _read_devices(space, launches, programs)
        parts = [_make_part(ops, programs, rank, launches.find_callers(ops.correlation)) for ops in devices]
        if all(part.tables["ops"].is_empty() for part in parts):
            thunks = [read_thunks(host) for host in hosts if host.plane.name == "/host:CPU"]
            parts = [_make_part(ops.take(~find_containers(ops, programs)), programs, rank) for ops in thunks]
        tables = tabulate_ranges(hosts, rank)
        beside = _read_async(space, rank)
    except WireError as error:
        raise InputError(f"{path}: not an XSpace protobuf: {error}.", DAMAGED) from None
    tables |= {name: pl.concat([part.tables[name] for part in parts]) for name in ("ops", "executions") if parts}
    if parts:
        tables["ranges"] = project_ranges(tables["ranges"], hosts, tables["ops"])
    if not beside.is_empty():
        first = tables["ranges"].height
        tables["ranges"] = pl.concat([tables["ranges"], beside.with_columns(range_id=first + pl.int_range(pl.len()))])
    tables["kernels"] = pl.concat([fill_table("kernels", 0), *_read_kernels(space, rank)])
    compiled = read_compile_events(path.parent / f"{path.name.removesuffix('.xplane.pb')}.compile.jsonl", rank)
    if compiled.is_empty():
        lines = [line for host in hosts for line in host.lines]
        compiled = make_compile(tables["ranges"], {line.line_id for line in lines if POOL.match(line.name)})
    if not compiled.is_empty():
        tables["compile"] = compiled
    warnings = [f"{path.name}: the profiler says: {text}" for text in space.notes]
    warnings += dict.fromkeys(f"{path.name}: {text}" for part in parts for text in part.warnings)
    warnings += [*_open_nodes(path, parts)]
    warnings += [*(_doubts(path, pl.concat(part.ran for part in parts), programs) if parts else ())]
    placings = merge_placings((number, names) for part in parts for number, names in part.placings.items())
    return Raw(tables=tables, programs=programs, warnings=tuple(warnings), placed=placings)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """Tables of a device's ops; the ops themselves are freed, so that the next device can reuse their memory.

    Attributes:
        ran: device time by instruction, without nodes of unknown instruction.
        open_ns: durations of these nodes.
    """

    tables: Mapping[str, pl.DataFrame]
    ran: pl.DataFrame
    open_ns: Positions
    placings: Mapping[int, Mapping[str, Placing]]
    warnings: tuple[str, ...]


def _make_part(ops: Ops, programs: Mapping[int, Program], rank: int, callers: Texts | None = None) -> _Part:
    placed = place_nodes(ops, programs, callers)
    return _Part(
        tables=tabulate(placed.ops, rank),
        ran=sum_by_instruction(placed.ops, ~placed.open),
        open_ns=placed.ops.duration_ns[placed.open & (placed.ops.kind.codes != GRAPH)],
        placings=placed.placed,
        warnings=placed.warnings,
    )


def _read_devices(space: Space, launches: Launches, programs: Mapping[int, Program]) -> Iterator[Ops]:
    for device, kind, plane in _find_devices(space):
        yield read_gpu(plane, device, launches) if kind == "GPU" else read_tpu(plane, device, programs)


def _read_kernels(space: Space, rank: int) -> Iterator[pl.DataFrame]:
    for device, kind, plane in _find_devices(space):
        if kind == "GPU":
            yield read_kernels(plane, device, rank)


def _read_async(space: Space, rank: int) -> pl.DataFrame:
    """Work that ran asynchronously to the ops of all devices, as ranges."""
    parts = [read_async(plane, rank) for _, kind, plane in _find_devices(space) if kind == "TPU"]
    return pl.concat([fill_table("ranges", 0), *parts])


def _find_devices(space: Space) -> list[tuple[int, str, Plane]]:
    """Number, kind and plane of each device, in order of the number."""
    matches = [(DEVICE.fullmatch(plane.name), plane) for plane in space.planes]
    devices = [(int(name[2]), name[1], plane) for name, plane in matches if name is not None]
    return sorted(devices, key=lambda device: device[:2])


def _read_programs(space: Space, path: Path) -> Iterator[Program]:
    for plane in space.planes:
        if plane.name != "/host:metadata":
            continue
        for event in plane.meta.event_metadata.values():
            name = text_of(event.name)
            match = PROGRAM_EVENT.fullmatch(name)
            proto = next(
                (s.bytes_value for s in event.stats if plane.stat_names.get(s.metadata_id) == "Hlo Proto"), b""
            )
            if match is not None and proto:
                yield read_program(proto, as_int64(int(match[1])), f"{path}: HLO of {name}")


def _read_dumped(path: Path, embedded: Mapping[int, Program]) -> dict[int, Program]:
    """Reads the programs that the trace does not embed from XLA's dump next to it."""
    dumped = read_dump_folder(path.parent / f"{path.name.removesuffix('.xplane.pb')}.dump")
    return {n: read_program(dump.data, n, dump.where) for n, dump in dumped.items() if n not in embedded}


def _open_nodes(path: Path, parts: Sequence[_Part]) -> Iterator[str]:
    """Warns about time in CUDA graphs that belongs to no known instruction."""
    if count := sum(len(part.open_ns) for part in parts):
        ms = sum(int(part.open_ns.sum()) for part in parts) / 1e6
        yield (
            f"{path.name}: {count} kernels of CUDA graphs ({ms:.3f} ms) fit no "
            "place in the schedule of their program for certain: they are not attributed to Python."
        )


def _doubts(path: Path, ran: pl.DataFrame, programs: Mapping[int, Program]) -> list[str]:
    """Warnings about device time of programs without HLO, and of instructions that are not in it."""
    doubts = []
    unknown = ran.filter(pl.col("program_id").is_not_null() & ~pl.col("program_id").is_in(list(programs)))
    if not unknown.is_empty():
        doubts.append(
            f"{path.name}: no HLO for {unknown['program_id'].n_unique()} of the programs that ran "
            f"({int(unknown['duration_ns'].sum()) / 1e6:.3f} ms): their ops cannot be attributed to Python."
        )
    by_instruction = ran.drop_nulls().group_by("program_id", "instruction").agg(pl.col("duration_ns").sum())
    lost = [
        (number, name, ns)
        for number, name, ns in by_instruction.sort("duration_ns", descending=True).iter_rows()
        if number in programs and name not in programs[number].instructions
    ]
    if lost:  # the HLO is of another build
        doubts.append(
            f"{path.name}: {len(lost)} instructions that ran ({sum(ns for *_, ns in lost) / 1e6:.3f} ms) are not in "
            f"the HLO of their program, such as {lost[0][1]!r} of {programs[lost[0][0]].name!r}: is it of another run?"
        )
    return doubts


def make_compile(ranges: pl.DataFrame, pools: Collection[int]) -> pl.DataFrame:
    """Makes the table `compile`; empty if nothing was compiled during the trace."""
    called = ranges["name"].str.contains(ROOT).fill_null(value=False).to_numpy()
    if not called.any():
        return make_table("compile", ())
    parent = ranges["parent_id"].fill_null(-1).to_numpy()
    root = find_nearest(parent, called)
    outer = np.where(parent >= 0, root[parent], -1)  # compiler call around each compiler call
    is_root, compiles = called & (outer < 0), root >= 0
    thread, start = ranges["thread"].to_numpy(), ranges["start_ns"].to_numpy()
    duration = ranges["duration_ns"].to_numpy()
    in_pool = np.isin(thread, list(pools))
    around = np.where(in_pool | (compiles & ~is_root), parent, -1)
    attached = attach_pool_ranges(in_pool & (parent < 0), is_root, compiles, around, thread, start, start + duration)
    # A call on a pool thread lies in the call that waits for it; of two equally long calls, neither lies in the other.
    around = np.where(is_root & (duration[attached] <= duration), -1, attached)
    root = find_nearest(around, is_root & (around < 0))
    rows = np.flatnonzero(root >= 0)
    programs = pl.DataFrame({"root": root[rows], "program": ranges["name"].str.extract(MODULE, 2).gather(rows)})
    call_programs = pl.col("program").drop_nulls().unique().over("root", mapping_strategy="join")
    program = pl.coalesce("program", pl.when(call_programs.list.len() == 1).then(call_programs.list.first()))
    name = pl.coalesce(ranges["name"].str.extract(MODULE, 1), ranges["name"])
    named = {"name": pl.select(name).to_series().gather(rows), "program": programs.select(program).to_series()}
    return fill_compile(ranges, rows, around, duration, **named)


def project_ranges(ranges: pl.DataFrame, hosts: Sequence[Decoded], ops: pl.DataFrame) -> pl.DataFrame:
    """Fills `device_start_ns`, `device_duration_ns` and `n_ops` of the ranges that launched something."""
    launched = ops.filter(pl.col("correlation_id").is_not_null() & pl.col("launch_ns").is_not_null())
    if launched.is_empty() or ranges.is_empty():
        return ranges
    start, duration, thread, correlation = (np.concatenate(column) for column in zip(*map(_calls, hosts), strict=True))
    begins = ranges["start_ns"].to_numpy()
    op_start = launched["start_ns"].to_numpy()
    projection = project(
        Ranges(start=begins, end=begins + ranges["duration_ns"].to_numpy(), thread=ranges["thread"].to_numpy()),
        Calls(
            start=start,
            end=start + duration,
            thread=thread,
            process=np.zeros(len(start), np.int64),
            correlation=correlation,
        ),
        Launched(
            start=op_start,
            end=op_start + launched["duration_ns"].to_numpy(),
            process=np.zeros(len(op_start), np.int64),
            correlation=launched["correlation_id"].fill_null(NONE).to_numpy(),
        ),
    )
    ran = pl.Series(projection.n_calls > 0)
    return ranges.with_columns(
        device_start_ns=pl.when(ran).then(pl.Series(projection.start)),
        device_duration_ns=pl.when(ran).then(pl.Series(projection.end) - pl.Series(projection.start)),
        n_ops=pl.when(ran).then(pl.Series(projection.n_calls)),
    )


def _calls(host: Decoded) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Start, duration, thread and correlation id of the calls of a host plane."""
    rows = np.flatnonzero(host.has("correlation_id"))
    threads = np.array([line.line_id for line in host.lines] or [0], np.int64)
    ids = host.integers("correlation_id").values[rows]
    return host.start_ns[rows], host.duration_ns[rows], threads[host.line[rows]], ids


DETAILS = "kernel_details"
FIELD = re.compile(r"(\w+):(\S+)")
COLUMNS = {
    "code": pl.Int64,
    "grid": pl.String,
    "block": pl.String,
    "registers": pl.Int64,
    "shared_bytes": pl.Int64,
    "occupancy": pl.Float64,
}


def read_kernels(plane: Plane, device: int, rank: int) -> pl.DataFrame:
    """Reads the table `kernels` of one GPU."""
    if DETAILS not in plane.stat_names.values():
        return fill_table("kernels", 0)
    decoded = decode(plane, (DETAILS,), [line for line in plane.lines if line.name.startswith("Stream #")])
    details = decoded.texts(DETAILS)
    described = np.flatnonzero(details.codes >= 0)
    shapes = [read_details(code, text) for code, text in enumerate(details.names)]
    names = decoded.names
    launches = pl.DataFrame(
        {
            "code": details.codes[described].astype(np.int64),
            "kernel": pl.Series([*names.names, None], dtype=pl.String).gather(names.codes[described].astype(np.uint32)),
            "duration_ns": decoded.duration_ns[described],
        }
    )
    rows = launches.join(pl.DataFrame(shapes, schema=COLUMNS, orient="row"), on="code", how="left")
    return summarise_kernels(rows.with_columns(rank=pl.lit(rank), device=pl.lit(device)))


def read_details(code: int, text: str) -> tuple[int, str | None, str | None, int | None, int | None, float | None]:
    """A launch configuration as a row of COLUMNS.

    >>> read_details(0, "regs:32 static_shared:1056 dynamic_shared:0 grid:64,1,1 block:128,1,1 occ_pct:100")
    (0, '64,1,1', '128,1,1', 32, 1056, 1.0)
    """
    fields = dict(FIELD.findall(text))
    registers = _number(fields.get("regs"))
    shared = [_number(fields.get(name)) for name in ("static_shared", "dynamic_shared")]
    percent = _number(fields.get("occ_pct"))
    return (
        code,
        fields.get("grid"),
        fields.get("block"),
        None if registers is None else int(registers),
        None if None in shared else int(sum(size or 0 for size in shared)),
        None if percent is None else percent / 100,
    )


def _number(text: str | None) -> float | None:
    try:
        return float(text or "")
    except ValueError:
        return None
