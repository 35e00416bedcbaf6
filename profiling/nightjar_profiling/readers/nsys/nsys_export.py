"""Reader of nsys exports, of XLA programs and others.

In: an SQLite file. Out: a `Raw`: ops, executions, ranges and compile ranges; and the
programs, if XLA dumped their HLO next to the file (`<name>.dump/`). The warnings name data missing from the export.

Each process with work on a device is a rank: the rank in the names of XLA's launching threads, otherwise a number by
process id.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl

from nightjar_profiling.capture_folder.tables import SCHEMAS
from nightjar_profiling.errors import InputError
from nightjar_profiling.hlo.hlo_dump import Dumped, LazyPrograms, read_dump_folder
from nightjar_profiling.readers.annotations.compile_ranges import make_compile
from nightjar_profiling.readers.annotations.xla_ranges import (
    XlaRanges,
    execution_table,
    number_executions,
    program_table,
    read_xla_ranges,
    take,
)
from nightjar_profiling.readers.annotations.xla_titles import DOMAIN, Titles, collect_titles
from nightjar_profiling.readers.nsys.nsys_kernels import (
    CALLS,
    KINDS,
    LAUNCHED,
    TIMES,
    read_calls,
    read_kernels,
    read_ops,
)
from nightjar_profiling.readers.nsys.nsys_nvtx import (
    PID,
    PROCESS,
    STRINGS,
    find_origins,
    find_ranges_of_events,
    read_node_events,
    read_nvtx,
    read_strings,
)
from nightjar_profiling.readers.nsys.nsys_placing import place_table
from nightjar_profiling.readers.nsys.nsys_tables import NsysTables
from nightjar_profiling.readers.nsys_jax.nsys_jax_launchers import LAUNCHER
from nightjar_profiling.readers.projection import NONE, Calls, Ints, Ops, Projection, Ranges, project
from nightjar_profiling.readers.raw import NO_DEVICE_NAMES, Raw, name_devices

KNOWN_SCHEMA = 3
GPUS = "TARGET_INFO_GPU"
ABOUT = ("META_DATA_EXPORT", "EXPORT_META_DATA")  # the latter to 2022
SUFFIXES = (".sqlite", ".nsys-rep")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Frames:
    """The frames of an export."""

    ops: pl.DataFrame
    untimed: int  # ops without start or end, which are left out
    calls: pl.DataFrame
    ranges: pl.DataFrame
    projection: Projection
    titles: Titles
    xla: XlaRanges
    op_range: Ints  # as in the projection; for a graph node, the range in which it was created


def read_sqlite(path: Path, rank: int = 0) -> Raw:
    """Reads an SQLite export; `rank` is the rank of its first process if the thread names have none."""
    with closing(NsysTables(path)) as tables:
        return read_export(tables, rank)


def read_export(tables: NsysTables, rank: int) -> Raw:
    """Reads an export."""
    if not any(name in tables for name in (*KINDS.values(), CALLS, "NVTX_EVENTS", STRINGS, *ABOUT)):
        names = ", ".join(sorted(tables.stored)[:5]) or "none"
        raise InputError(
            f"{tables.path}: holds no nsys table; its tables: {names}.", "export with `nsys export --type sqlite`"
        )
    strings = read_strings(tables)
    frames = _project(tables, strings)
    warnings = list(_find_missing(tables, frames))
    ranks = _number_processes(tables, strings, frames, rank)
    runs = _find_runs(frames, ranks)
    ranges = _make_ranges(frames, ranks, rank)
    ops = _make_ops(frames, runs, ranks)
    timed = ranges.with_columns(end_ns=pl.col("start_ns") + pl.col("duration_ns"), thread=frames.ranges["global_tid"])
    compiled = make_compile(timed, frames.titles, frames.projection.parent, frames.xla)
    dumped = _find_dumps(tables.path, sorted(set(ranks.values())))
    programs = LazyPrograms(dumped)
    nodes = place_table(ops, programs)
    by_launch = ops["graph_node"].is_not_null().any() and read_node_events(tables).is_empty()
    if by_launch and not nodes.placed:
        warnings.append("no creation events of CUDA graph nodes: kernels are assigned to the graph's launch range")
    if nodes.unmatched:
        warnings.append(
            f"{nodes.unmatched} CUDA graph kernels ({nodes.unmatched_ns / 1e6:.3f} ms) could not be matched "
            "unambiguously to their program's schedule: they are not attributed to Python"
        )
    ops = nodes.ops
    written = {
        "ops": ops,
        "executions": execution_table(runs),
        "kernels": read_kernels(tables, strings, ranks),
        "ranges": ranges,
        "compile": compiled.with_columns(pl.col("thread").and_(pl.lit(PID))),
        "programs": program_table(frames.xla.fields, {number: dump.fingerprint for number, dump in dumped.items()}),
    }
    warnings += _find_doubtful(frames, runs, ops, dumped)
    kinds: Iterable[str | None] = ()
    try:
        kinds = tables.read(GPUS, {"name": pl.String})["name"]
    except InputError as error:  # only the names are lost
        warnings.append(f"{error.message} {NO_DEVICE_NAMES}")
    name = tables.path.name
    return Raw(
        tables=written,
        programs=programs,
        warnings=tuple(f"{name}: {text}" for text in warnings),
        placed=nodes.placed,
        devices=name_devices(kinds, ops),
        foreign=ops["program_id"].is_null().all() and ops["thunk"].is_null().all(),
    )


def _project(tables: NsysTables, strings: pl.DataFrame) -> _Frames:
    all_ops, calls = read_ops(tables, strings), read_calls(tables)
    ops = all_ops.drop_nulls(["start_ns", "end_ns"]).sort("start_ns", maintain_order=True)
    latest = max([int(end) for end in (ops["end_ns"].max(), calls["end"].max()) if isinstance(end, int)], default=0)
    ranges = read_nvtx(tables, strings, latest)
    thread = ranges["global_tid"].fill_null(0).to_numpy()
    cross_thread = np.flatnonzero(~ranges["nested"].to_numpy())
    if len(cross_thread):  # ranges across threads get a thread of their own and contain nothing
        thread = thread.copy()
        thread[cross_thread] = -1 - cross_thread
    call_threads = calls["globalTid"].to_numpy()
    projection = project(
        Ranges(start=ranges["start_ns"].to_numpy(), end=ranges["end_ns"].to_numpy(), thread=thread),
        Calls(
            start=calls["start"].to_numpy(),
            end=calls["end"].to_numpy(),
            thread=call_threads,
            process=call_threads & PROCESS,
            correlation=calls["correlationId"].to_numpy(),
        ),
        Ops(
            start=ops["start_ns"].to_numpy(),
            end=ops["end_ns"].to_numpy(),
            process=ops["process"].to_numpy(),
            correlation=ops["correlation_id"].fill_null(NONE).to_numpy(),
        ),
    )
    is_xla = (pl.col("domain") == DOMAIN) | pl.col("domain").is_null()  # XLA's domain or none
    titles = collect_titles(ranges.select(pl.when(is_xla).then("name")).to_series())
    frames = _Frames(
        ops=ops,
        untimed=all_ops.height - ops.height,
        calls=calls,
        ranges=ranges,
        projection=projection,
        titles=titles,
        xla=read_xla_ranges(titles, projection.parent),
        op_range=projection.op_range,
    )
    return replace(frames, op_range=_find_op_ranges(tables, frames))


def _find_op_ranges(tables: NsysTables, frames: _Frames) -> Ints:
    """The range of each op; for a CUDA graph node, the thunk range in which it was created, if known."""
    rows = np.flatnonzero(frames.ops["graph_node"].is_not_null().to_numpy())
    events = read_node_events(tables)
    if not len(rows) or events.is_empty():
        return frames.projection.op_range
    nodes = frames.ops[rows]
    origin = find_origins(events, nodes["process"].to_numpy(), nodes["graph_node"].to_numpy())
    event_ranges = find_ranges_of_events(events, frames.calls, frames.ranges, frames.projection.parent)
    created_in = np.where(origin >= 0, event_ranges[origin], NONE)
    in_thunk = (created_in >= 0) & (frames.xla.thunk[created_in] >= 0)
    op_range = frames.projection.op_range.copy()
    op_range[rows[in_thunk]] = created_in[in_thunk]
    return op_range


def _number_processes(tables: NsysTables, strings: pl.DataFrame, frames: _Frames, rank: int) -> dict[int, int]:
    """The rank of each process (globalPid) with work on a device."""
    working = frames.ops["process"].unique().sort().to_list()
    threads = tables.read("ThreadNames", {"nameId": pl.Int64, "globalTid": pl.Int64}).drop_nulls()
    named = threads.join(strings.rename({"id": "nameId"}), on="nameId").select(
        process=pl.col("globalTid").and_(pl.lit(PROCESS)),
        rank=pl.col("value").str.extract_groups(LAUNCHER).struct.field("rank").cast(pl.Int64),
    )
    by_name = dict(named.drop_nulls().unique("process").iter_rows())
    if working and all(p in by_name for p in working) and len({by_name[p] for p in working}) == len(working):
        return {process: by_name[process] for process in working}
    return {process: rank + number for number, process in enumerate(working)}


def _find_runs(frames: _Frames, ranks: dict[int, int]) -> pl.DataFrame:
    """The numbered runs of programs on devices; `run` is the row of the module's range."""
    op_range = frames.projection.op_range
    module = np.append(frames.xla.module, NONE)[op_range]  # -1 reads NONE
    launched = frames.ops.select("process", "device", "start_ns", "end_ns").with_columns(run=pl.Series(module))
    spans = launched.filter(pl.col("run") >= 0).group_by("run", "process", "device", maintain_order=True)
    runs = spans.agg(pl.col("start_ns").min(), end_ns=pl.col("end_ns").max())
    rows = runs["run"]
    return number_executions(
        runs.with_columns(
            rank=pl.col("process").replace_strict(ranks, return_dtype=pl.Int64),
            program_id=frames.xla.gather("program_id", rows.to_numpy()),
            name=frames.xla.gather("module", rows.to_numpy()),
            complete=frames.ranges["closed"].gather(rows),
            duration_ns=pl.col("end_ns") - pl.col("start_ns"),
        )
    )


def _make_ops(frames: _Frames, runs: pl.DataFrame, ranks: dict[int, int]) -> pl.DataFrame:
    launched_in, op_range = frames.projection.op_range, frames.op_range
    module = np.append(frames.xla.module, NONE)[launched_in]  # -1 reads NONE
    thunk = np.append(frames.xla.thunk, NONE)[op_range]
    call = frames.projection.op_call
    by_node = (op_range != launched_in) & (thunk >= 0)
    keys = np.where(by_node, len(frames.ranges) + call * (len(frames.ranges) + 1) + thunk, thunk)  # one key per launch
    ops = frames.ops.with_columns(
        rank=pl.col("process").replace_strict(ranks, return_dtype=pl.Int64),
        run=pl.Series(module, dtype=pl.Int64),
        thunk=pl.Series(keys, dtype=pl.Int64).replace(NONE, None),
        launch_ns=take(frames.calls["start"], call),
        duration_ns=pl.col("end_ns") - pl.col("start_ns"),
        program_id=frames.xla.gather("program_id", module),
        instruction=frames.xla.gather("instruction", np.where(module >= 0, thunk, NONE)),
    )
    ops = ops.join(
        runs.select("run", "process", "device", "execution"),
        on=["run", "process", "device"],
        how="left",
        maintain_order="left",
    )
    ops = ops.with_columns(hidden_ns=pl.lit(None, pl.Int64), uncertain_ns=pl.lit(None, pl.Int64)).sort(
        "start_ns", maintain_order=True
    )
    return ops.select(pl.col(name).cast(kind) for name, kind in SCHEMAS["ops"].items())


def _make_ranges(frames: _Frames, ranks: dict[int, int], rank: int) -> pl.DataFrame:
    projection = frames.projection
    ran = pl.Series(projection.n_calls > 0)
    process = pl.col("global_tid").and_(pl.lit(PROCESS))
    table = frames.ranges.with_columns(
        rank=process.replace_strict(ranks, default=rank, return_dtype=pl.Int64),
        thread=pl.col("global_tid").and_(pl.lit(PID)),
        range_id=pl.int_range(pl.len(), dtype=pl.Int64),
        parent_id=pl.Series(projection.parent).replace(NONE, None),
        duration_ns=pl.col("end_ns") - pl.col("start_ns"),
        device_start_ns=pl.when(ran).then(pl.Series(projection.start)),
        device_duration_ns=pl.when(ran).then(pl.Series(projection.end) - pl.Series(projection.start)),
        n_ops=pl.when(ran).then(pl.Series(projection.n_calls)),
    )
    return table.select(pl.col(name).cast(kind) for name, kind in SCHEMAS["ranges"].items())


def _find_dumps(path: Path, ranks: list[int]) -> dict[int, Dumped]:
    """Reads the HLO that XLA dumped next to the file, of all processes."""
    stem = next((path.name.removesuffix(suffix) for suffix in SUFFIXES if path.name.endswith(suffix)), path.name)
    dumped: dict[int, Dumped] = {}
    for name in dict.fromkeys([f"{stem}.dump", *(f"rank{rank:04}.dump" for rank in ranks)]):
        dumped = read_dump_folder(path.parent / name) | dumped
    return dumped


def _find_missing(tables: NsysTables, frames: _Frames) -> Iterator[str]:
    """Warnings about tables that the export lacks, and how to record them."""
    if frames.ops.is_empty():
        stored = ", ".join(sorted(set(tables.stored) & {CALLS, "NVTX_EVENTS", *KINDS.values()})) or "none"
        yield f"no GPU work: expected {', '.join(KINDS.values())}, found {stored}; trace with --trace=cuda"
    if frames.ranges.is_empty():
        yield "no NVTX ranges: ops cannot be assigned to programs; trace with --trace=cuda,nvtx"
    if frames.calls.is_empty() and not frames.ops.is_empty():
        yield f"no {CALLS}: ops cannot be assigned to the ranges that launched them; trace with --trace=cuda,nvtx"
    if not frames.ops.is_empty() and frames.ops["kind"].is_in(["graph"]).any():
        yield "CUDA graphs were traced as a whole: their kernels are not shown; trace with --cuda-graph-trace=node"
    yield from _find_unreadable(tables, frames)
    for table in ABOUT:
        metadata = dict(tables.read(table, {"name": pl.String, "value": pl.String}).drop_nulls().iter_rows())
        version = str(metadata.get("EXPORT_SCHEMA_VERSION") or metadata.get("EXPORT_SCHEMA_VERSION_MAJOR", ""))
        major = version.split(".")[0]
        if major.isdigit() and int(major) > KNOWN_SCHEMA:
            product = metadata.get("EXPORT_PRODUCT_VERSION", "unknown")
            yield (
                f"{table}: export schema {version} (nsys {product}) is newer than {KNOWN_SCHEMA}, the newest "
                "supported: tables that moved are not read; if something is missing, export with an older nsys"
            )


def _find_unreadable(tables: NsysTables, frames: _Frames) -> Iterator[str]:
    """Warnings about columns and values that cannot be read."""
    for table in KINDS.values():
        if absent := tables.list_absent(table, TIMES):
            yield f"{table} has no column {', '.join(absent)}: its ops are not shown; export with an older nsys"
        elif absent := tables.list_absent(table, LAUNCHED):
            yield f"{table} has no column {', '.join(absent)}: its ops cannot be assigned to their launches"
    if frames.untimed:
        yield f"{frames.untimed} ops have no valid start or end: they are not shown"
    if STRINGS not in tables and not frames.ops.is_empty():
        yield f"no {STRINGS}: kernels, and ranges with registered names, have no name"


def _find_doubtful(frames: _Frames, runs: pl.DataFrame, ops: pl.DataFrame, dumped: dict[int, Dumped]) -> Iterator[str]:
    for name in runs.filter(~pl.col("complete"))["name"].unique(maintain_order=True):
        yield f"the trace ends during a run of {name}"
    stray = ops.filter(pl.col("program_id").is_null() & pl.col("thunk").is_not_null())
    if not stray.is_empty():
        yield f"{stray.height} thunk ops belong to no program: the trace began during its run"
    ran = runs.filter(pl.col("program_id") >= 0).select("program_id", "name").unique(maintain_order=True)
    lacking = [name for number, name in ran.iter_rows() if number not in dumped]
    if lacking:
        names = ", ".join(sorted(set(lacking))[:5])
        yield f"no HLO for {len(lacking)} programs that ran ({names}): expected in <name>.dump next to the export"
    for number, name in ran.iter_rows():
        if number in dumped and dumped[number].name != name:
            yield f"program {number} ran as {name!r}, but its HLO module is {dumped[number].name!r}"
