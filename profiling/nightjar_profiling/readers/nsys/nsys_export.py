"""What does an nsys export tell of a program of XLA, or of anyone's?

In: an SQLite file or a folder of Parquet files. Out: a `Raw`: ops, executions, ranges and compile ranges; and the
programs, where XLA dumped their HLO beside the file (`<name>.dump/`). What the export lacks is named in the warnings.

Each process with work on a device is a rank: that which XLA's launching threads tell, else numbered by process id.
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
from nightjar_profiling.readers.nsys.nsys_graphs import find_origins, find_ranges_of_events, read_node_events
from nightjar_profiling.readers.nsys.nsys_nvtx import PID, PROCESS, STRINGS, read_nvtx, read_strings
from nightjar_profiling.readers.nsys.nsys_ops import CALLS, KINDS, LAUNCHED, TIMES, read_calls, read_ops
from nightjar_profiling.readers.nsys.nsys_placing import place_table
from nightjar_profiling.readers.nsys.nsys_tables import NsysTables, ParquetTables, SqliteTables
from nightjar_profiling.readers.nsys_jax.nsys_jax_launchers import LAUNCHER
from nightjar_profiling.readers.projection import NONE, Calls, Ints, Ops, Projection, Ranges, project
from nightjar_profiling.readers.raw import NAMELESS, Raw, name_devices

KNOWN_SCHEMA = 3
GPUS = "TARGET_INFO_GPU"
ABOUT = ("META_DATA_EXPORT", "EXPORT_META_DATA")  # the latter to 2022
EXPORT = "`nsys export --type sqlite` or `--type parquetdir`"
SUFFIXES = (".sqlite", ".nsys-rep", "_pqtdir")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """The frames of an export, put together."""

    ops: pl.DataFrame
    untimed: int  # ops without a start or an end, which are left out
    calls: pl.DataFrame
    ranges: pl.DataFrame
    projection: Projection
    titles: Titles
    xla: XlaRanges
    op_range: Ints  # as in the projection; of a graph's node, where it was made


def read_sqlite(path: Path, rank: int = 0) -> Raw:
    """Reads an SQLite export; `rank` is that of its first process, if that does not tell.

    Raises:
        InputError: missing, empty, truncated, or no database.
    """
    with closing(SqliteTables(path)) as tables:
        return read_export(tables, rank)


def read_parquet_folder(path: Path, rank: int = 0) -> Raw:
    """Reads a folder of Parquet files; see `read_sqlite`.

    Raises:
        InputError: a file in it is damaged.
    """
    return read_export(ParquetTables(path), rank)


def read_export(tables: NsysTables, rank: int) -> Raw:
    """Reads an export.

    Raises:
        InputError: none of its tables is one of nsys, or it is damaged.
    """
    if not any(name in tables for name in (*KINDS.values(), CALLS, "NVTX_EVENTS", STRINGS, *ABOUT)):
        names = ", ".join(sorted(tables.stored)[:5]) or "none at all"
        raise InputError(f"{tables.path}: holds no table of nsys, but {names}.", f"expected what {EXPORT} writes")
    strings = read_strings(tables)
    run = _project(tables, strings)
    warnings = list(_missing(tables, run))
    ranks = _number_processes(tables, strings, run, rank)
    runs = _find_runs(run, ranks)
    ranges = _make_ranges(run, ranks, rank)
    ops = _make_ops(run, runs, ranks)
    timed = ranges.with_columns(end_ns=pl.col("start_ns") + pl.col("duration_ns"), thread=run.ranges["global_tid"])
    compiled = make_compile(timed, run.titles, run.projection.parent, run.xla)
    dumped = _find_dumps(tables.path, sorted(set(ranks.values())))
    programs = LazyPrograms(dumped)
    nodes = place_table(ops, programs)
    by_launch = ops["graph_node"].is_not_null().any() and read_node_events(tables).is_empty()
    if by_launch and not nodes.placed:
        warnings.append("no events of the making of CUDA graph nodes: their kernels are those of the launch's range")
    if nodes.open:
        warnings.append(
            f"{nodes.open} kernels of CUDA graphs ({nodes.open_ns / 1e6:.3f} ms) fit no place in the schedule of their "
            "program for certain: they are not attributed to Python"
        )
    ops = nodes.ops
    tables_found = {
        "ops": ops,
        "executions": execution_table(runs),
        "ranges": ranges,
        "compile": compiled.with_columns(pl.col("thread").and_(pl.lit(PID))),
        "programs": program_table(run.xla.told, {number: one.fingerprint for number, one in dumped.items()}),
    }
    warnings += _doubts(run, runs, ops, dumped)
    kinds: Iterable[str | None] = ()
    try:
        kinds = tables.read(GPUS, {"name": pl.String})["name"]
    except InputError as error:  # all else is shown without
        warnings.append(f"{error.message} {NAMELESS}")
    name = tables.path.name
    return Raw(
        tables=tables_found,
        programs=programs,
        warnings=tuple(f"{name}: {text}" for text in warnings),
        placed=nodes.placed,
        devices=name_devices(kinds, ops),
    )


def _project(tables: NsysTables, strings: pl.DataFrame) -> _Run:
    found, calls = read_ops(tables, strings), read_calls(tables)
    ops = found.drop_nulls(["start_ns", "end_ns"]).sort("start_ns", maintain_order=True)
    latest = max([int(one) for one in (ops["end_ns"].max(), calls["end"].max()) if isinstance(one, int)], default=0)
    ranges = read_nvtx(tables, strings, latest)
    thread = ranges["global_tid"].fill_null(0).to_numpy()
    across = np.flatnonzero(~ranges["nested"].to_numpy())
    if len(across):  # no thread of their own: such a range contains nothing
        thread = thread.copy()
        thread[across] = -1 - across
    called = calls["globalTid"].to_numpy()
    projection = project(
        Ranges(start=ranges["start_ns"].to_numpy(), end=ranges["end_ns"].to_numpy(), thread=thread),
        Calls(
            start=calls["start"].to_numpy(),
            end=calls["end"].to_numpy(),
            thread=called,
            process=called & PROCESS,
            correlation=calls["correlationId"].to_numpy(),
        ),
        Ops(
            start=ops["start_ns"].to_numpy(),
            end=ops["end_ns"].to_numpy(),
            process=ops["process"].to_numpy(),
            correlation=ops["correlation_id"].fill_null(NONE).to_numpy(),
        ),
    )
    mine = (pl.col("domain") == DOMAIN) | pl.col("domain").is_null()  # in XLA's domain, or in none that is known
    titles = collect_titles(ranges.select(pl.when(mine).then("name")).to_series())
    run = _Run(
        ops=ops,
        untimed=found.height - ops.height,
        calls=calls,
        ranges=ranges,
        projection=projection,
        titles=titles,
        xla=read_xla_ranges(titles, projection.parent),
        op_range=projection.op_range,
    )
    return replace(run, op_range=_lead_to_nodes(tables, run))


def _lead_to_nodes(tables: NsysTables, run: _Run) -> Ints:
    """The range of each op; of a node of a CUDA graph the thunk in which the node was made, if it is known."""
    rows = np.flatnonzero(run.ops["graph_node"].is_not_null().to_numpy())
    events = read_node_events(tables)
    if not len(rows) or events.is_empty():
        return run.projection.op_range
    nodes = run.ops[rows]
    origin = find_origins(events, nodes["process"].to_numpy(), nodes["graph_node"].to_numpy())
    of_event = find_ranges_of_events(events, run.calls, run.ranges, run.projection.parent)
    made_in = np.where(origin >= 0, of_event[origin], NONE)
    in_thunk = (made_in >= 0) & (run.xla.thunk[made_in] >= 0)
    found = run.projection.op_range.copy()
    found[rows[in_thunk]] = made_in[in_thunk]
    return found


def _number_processes(tables: NsysTables, strings: pl.DataFrame, run: _Run, rank: int) -> dict[int, int]:
    """Rank by process (globalPid) with work on a device."""
    working = run.ops["process"].unique().sort().to_list()
    threads = tables.read("ThreadNames", {"nameId": pl.Int64, "globalTid": pl.Int64}).drop_nulls()
    named = threads.join(strings.rename({"id": "nameId"}), on="nameId").select(
        process=pl.col("globalTid").and_(pl.lit(PROCESS)),
        rank=pl.col("value").str.extract_groups(LAUNCHER).struct.field("rank").cast(pl.Int64),
    )
    told = dict(named.drop_nulls().unique("process").iter_rows())
    if working and all(process in told for process in working) and len({told[p] for p in working}) == len(working):
        return {process: told[process] for process in working}
    return {process: rank + number for number, process in enumerate(working)}


def _find_runs(run: _Run, ranks: dict[int, int]) -> pl.DataFrame:
    """Runs of programs on devices, numbered; `run` is the row number of the module's range."""
    at = run.projection.op_range
    module = np.where(at >= 0, run.xla.module[at], NONE) if len(run.xla.module) else at
    launched = run.ops.select("process", "device", "start_ns", "end_ns").with_columns(run=pl.Series(module))
    spans = launched.filter(pl.col("run") >= 0).group_by("run", "process", "device", maintain_order=True)
    runs = spans.agg(pl.col("start_ns").min(), end_ns=pl.col("end_ns").max())
    rows = runs["run"]
    return number_executions(
        runs.with_columns(
            rank=pl.col("process").replace_strict(ranks, return_dtype=pl.Int64),
            program_id=run.xla.tell("program_id", rows.to_numpy()),
            name=run.xla.tell("module", rows.to_numpy()),
            complete=run.ranges["closed"].gather(rows),
            duration_ns=pl.col("end_ns") - pl.col("start_ns"),
        )
    )


def _make_ops(run: _Run, runs: pl.DataFrame, ranks: dict[int, int]) -> pl.DataFrame:
    launched_in, at = run.projection.op_range, run.op_range
    known = len(run.xla.module) > 0
    module = np.where(launched_in >= 0, run.xla.module[launched_in], NONE) if known else launched_in
    thunk = np.where(at >= 0, run.xla.thunk[at], NONE) if known else at
    call = run.projection.op_call
    by_node = (at != launched_in) & (thunk >= 0)
    keys = np.where(by_node, len(run.ranges) + call * (len(run.ranges) + 1) + thunk, thunk)  # one per launch
    ops = run.ops.with_columns(
        rank=pl.col("process").replace_strict(ranks, return_dtype=pl.Int64),
        run=pl.Series(module, dtype=pl.Int64),
        thunk=pl.Series(keys, dtype=pl.Int64).replace(NONE, None),
        launch_ns=take(run.calls["start"], call),
        duration_ns=pl.col("end_ns") - pl.col("start_ns"),
        program_id=run.xla.tell("program_id", module),
        instruction=run.xla.tell("instruction", np.where(module >= 0, thunk, NONE)),
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


def _make_ranges(run: _Run, ranks: dict[int, int], rank: int) -> pl.DataFrame:
    projection = run.projection
    ran = pl.Series(projection.n_calls > 0)
    process = pl.col("global_tid").and_(pl.lit(PROCESS))
    found = run.ranges.with_columns(
        rank=process.replace_strict(ranks, default=rank, return_dtype=pl.Int64),
        thread=pl.col("global_tid").and_(pl.lit(PID)),
        range_id=pl.int_range(pl.len(), dtype=pl.Int64),
        parent_id=pl.Series(projection.parent).replace(NONE, None),
        duration_ns=pl.col("end_ns") - pl.col("start_ns"),
        device_start_ns=pl.when(ran).then(pl.Series(projection.start)),
        device_duration_ns=pl.when(ran).then(pl.Series(projection.end) - pl.Series(projection.start)),
        n_ops=pl.when(ran).then(pl.Series(projection.n_calls)),
    )
    return found.select(pl.col(name).cast(kind) for name, kind in SCHEMAS["ranges"].items())


def _find_dumps(path: Path, ranks: list[int]) -> dict[int, Dumped]:
    """The HLO that XLA dumped beside the file, of all its processes."""
    stem = next((path.name.removesuffix(suffix) for suffix in SUFFIXES if path.name.endswith(suffix)), path.name)
    found: dict[int, Dumped] = {}
    for name in dict.fromkeys([f"{stem}.dump", *(f"rank{rank:04}.dump" for rank in ranks)]):
        found = read_dump_folder(path.parent / name) | found
    return found


def _missing(tables: NsysTables, run: _Run) -> Iterator[str]:
    """What the export cannot tell, and what would."""
    if run.ops.is_empty():
        stored = ", ".join(sorted(set(tables.stored) & {CALLS, "NVTX_EVENTS", *KINDS.values()})) or "none of them"
        yield f"no work on a GPU: expected {', '.join(KINDS.values())}, found {stored}; trace with --trace=cuda"
    if run.ranges.is_empty():
        yield "no NVTX ranges: nothing can be tied to a program; trace with --trace=cuda,nvtx"
    if run.calls.is_empty() and not run.ops.is_empty():
        yield f"no {CALLS}: it is not known which range launched what; trace with --trace=cuda,nvtx"
    if not run.ops.is_empty() and run.ops["kind"].is_in(["graph"]).any():
        yield "CUDA graphs are traced whole: their kernels are not shown; trace with --cuda-graph-trace=node"
    yield from _lost(tables, run)
    for table in ABOUT:
        told = dict(tables.read(table, {"name": pl.String, "value": pl.String}).drop_nulls().iter_rows())
        version = str(told.get("EXPORT_SCHEMA_VERSION") or told.get("EXPORT_SCHEMA_VERSION_MAJOR", ""))
        major = version.split(".")[0]
        if major.isdigit() and int(major) > KNOWN_SCHEMA:
            product = told.get("EXPORT_PRODUCT_VERSION", "unknown")
            yield (
                f"{table} names schema {version} (nsys {product}), newer than the {KNOWN_SCHEMA} that is known: "
                "what has moved in it is missing here; export with an older nsys if something is"
            )


def _lost(tables: NsysTables, run: _Run) -> Iterator[str]:
    """What cannot be shown because a column or a value is not where it was."""
    for table in KINDS.values():
        if absent := tables.list_absent(table, TIMES):
            yield f"{table} has no column {', '.join(absent)}: what it holds is not shown; export with an older nsys"
        elif absent := tables.list_absent(table, LAUNCHED):
            yield f"{table} has no column {', '.join(absent)}: it is not known what launched its ops"
    if run.untimed:
        yield f"{run.untimed} ops have no start or no end that is a number: they are not shown"
    if STRINGS not in tables and not run.ops.is_empty():
        yield f"no {STRINGS}: kernels have no names, nor have ranges whose text lies there"


def _doubts(run: _Run, runs: pl.DataFrame, ops: pl.DataFrame, dumped: dict[int, Dumped]) -> Iterator[str]:
    """What is there, but not whole."""
    for name in runs.filter(~pl.col("complete"))["name"].unique(maintain_order=True):
        yield f"the trace ends in the middle of a run of {name}"
    stray = ops.filter(pl.col("program_id").is_null() & pl.col("thunk").is_not_null())
    if not stray.is_empty():
        yield f"{stray.height} ops of thunks lie in no program: the trace began while it ran"
    ran = runs.filter(pl.col("program_id") >= 0).select("program_id", "name").unique(maintain_order=True)
    lacking = [name for number, name in ran.iter_rows() if number not in dumped]
    if lacking:
        names = ", ".join(sorted(set(lacking))[:5])
        yield f"no HLO for {len(lacking)} programs that ran ({names}): expected in a folder <name>.dump beside it"
    for number, name in ran.iter_rows():
        if number in dumped and dumped[number].name != name:
            yield f"program {number} ran as {name!r}, but its HLO is of {dumped[number].name!r}"
