"""A trace for ui.perfetto.dev: ops on one track per stream, program executions on one track per device.

In: tables. Out: gzipped JSON in the trace event format. A device of a rank is a process, a stream is a thread. A stream
with overlapping ops uses several threads, since the events of one thread must nest. Times are microseconds with three
decimals since the first op, exact to the nanosecond; all ranks are on one clock.

Source: "Trace Event Format" (complete events, metadata events), which Perfetto documents at
https://perfetto.dev/docs/getting-started/other-formats
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator

import polars as pl

from nightjar_profiling.analyses.communication.clocks import align
from nightjar_profiling.attribution.apportion import INSTRUCTION, Fusion, apportion_time
from nightjar_profiling.attribution.stacks import build_stacks
from nightjar_profiling.capture_folder.tables import Tables
from nightjar_profiling.report.lanes import LANE, split_overlaps

EXECUTIONS, OPS = 1, 100_001  # first thread numbers
GZIP_LEVEL = 3  # a million ops take 4 s at 6 and 2 s at 3, for 6 % more bytes


def render_perfetto(tables: Tables, fusion: Fusion = "split", mark: str = "") -> bytes:
    """The bytes of the file; a mark is added to the name of each device."""
    tables = align(tables)
    ops = _assign_lanes(tables.ops)
    executions = _assign_lanes(tables.executions.with_columns(stream=pl.lit("programs")))
    events = ",\n".join([*_tracks(executions, ops, mark), *_executions(tables, executions), *_ops(tables, ops, fusion)])
    head = '{"displayTimeUnit":"ns","otherData":{"exporter":"nightjar-profiling"},"traceEvents":[\n'
    return gzip.compress(f"{head}{events}\n]}}\n".encode("utf-8", "replace"), GZIP_LEVEL, mtime=0)


def _assign_lanes(events: pl.DataFrame) -> pl.DataFrame:
    """The events with a column `sub`, the lane in their stream."""
    timed = events.with_columns(pl.col("stream").fill_null(""), start="start_ns", duration="duration_ns")
    order = ["rank", "device", "stream", "start", "duration"]
    return split_overlaps(timed.sort(order, descending=[False] * 4 + [True]))


def _tracks(executions: pl.DataFrame, ops: pl.DataFrame, mark: str) -> Iterator[str]:
    """Names of processes and threads."""
    devices = _devices(ops)
    suffix = f" ({mark})" if mark else ""
    for pid, (rank, device) in enumerate(devices, start=1):
        yield _metadata("process_name", pid, 0, f"rank {rank}, device {device}{suffix}")
    for events, first in ((executions, EXECUTIONS), (ops, OPS)):
        for tid, pid, name in _threads(events, devices, first).select("tid", "pid", "name").iter_rows():
            yield _metadata("thread_name", pid, tid, name)


def _devices(ops: pl.DataFrame) -> list[tuple[int, int]]:
    return ops.select("rank", "device").unique().sort("rank", "device").rows()


def _threads(events: pl.DataFrame, devices: list[tuple[int, int]], first: int) -> pl.DataFrame:
    """One row per lane: its columns, `pid`, `tid` and `name`."""
    pids = pl.DataFrame(
        [(rank, device, pid) for pid, (rank, device) in enumerate(devices, start=1)],
        schema={"rank": pl.Int64, "device": pl.Int64, "pid": pl.Int64},
        orient="row",
    )
    lanes = events.select(LANE).unique().sort(LANE).join(pids, on=["rank", "device"], maintain_order="left")
    suffix = pl.when(pl.col("sub") > 0).then(pl.format(" ({})", pl.col("sub") + 1)).otherwise(pl.lit(""))
    return lanes.with_columns(tid=pl.int_range(pl.len()) + first, name=pl.col("stream") + suffix)


def _metadata(kind: str, pid: int, tid: int, name: str) -> str:
    return json.dumps({"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}, ensure_ascii=False)


def _executions(tables: Tables, events: pl.DataFrame) -> list[str]:
    names = {
        row["program_id"]: json.dumps({"name": row["name"], "cat": "execution"}, ensure_ascii=False)[1:]
        for row in tables.programs.iter_rows(named=True)
    }
    unknown = '"name":"no program","cat":"execution"}'
    tails = pl.Series([names.get(number, unknown) for number in events["program_id"]], dtype=pl.String)
    threads = _threads(events, _devices(tables.ops), EXECUTIONS)
    return _render(events.with_columns(tail=tails), threads, tables)


def _ops(tables: Tables, events: pl.DataFrame, fusion: Fusion) -> list[str]:
    keys = [*INSTRUCTION, "kernel"]
    kinds = events.select(keys).unique()
    lines = find_lines(tables, fusion)
    opcodes = {
        (program_id, name): (opcode, op_name)
        for program_id, name, opcode, op_name in tables.instructions.select(
            "program_id", "name", "opcode", "op_name"
        ).iter_rows()
    }
    tails = []
    for program_id, instruction, kernel in kinds.iter_rows():
        opcode, op_name = opcodes.get((program_id, instruction), (None, None))
        args = {"line": lines.get((program_id, instruction)), "opcode": opcode, "traced as": op_name, "kernel": kernel}
        event = {
            "name": instruction or kernel or "unknown op",
            "cat": "op",
            "args": {key: text for key, text in args.items() if text},
        }
        tails.append(json.dumps(event, ensure_ascii=False, separators=(",", ":"))[1:])
    tailed = events.join(
        kinds.with_columns(tail=pl.Series(tails, dtype=pl.String)), on=keys, how="left", nulls_equal=True
    )
    return _render(tailed, _threads(events, _devices(events), OPS), tables)


def find_lines(tables: Tables, fusion: Fusion) -> dict[tuple[int | None, str | None], str]:
    """By instruction, `file:line function` of the innermost frame with most of its time."""
    tree = build_stacks(tables)
    shares = apportion_time(tables, by=(), fusion=fusion).sort("duration_ns").select(*INSTRUCTION, "frame_id")
    lines = {}
    for program_id, instruction, frame_id in shares.iter_rows():
        path = tree.path(tree.node_of(program_id, frame_id))
        if path:
            file, line, function = tree.places[path[-1]]
            lines[program_id, instruction] = f"{file}:{line} {function}"
    return lines


def _render(events: pl.DataFrame, threads: pl.DataFrame, tables: Tables) -> list[str]:
    """Complete events as JSON; `tail` is the part that all events of a kind share."""
    origin_ns = tables.ops["start_ns"].min()
    rows = events.join(threads.select(*LANE, "pid", "tid"), on=LANE).select(
        pl.concat_str(
            pl.lit('{"ph":"X","pid":'), "pid",
            pl.lit(',"tid":'), "tid",
            pl.lit(',"ts":'), _microseconds(pl.col("start_ns") - origin_ns),
            pl.lit(',"dur":'), _microseconds(pl.col("duration_ns")),
            pl.lit(","), "tail",
        )
    )  # fmt: skip
    return rows.to_series().to_list()


def _microseconds(ns: pl.Expr) -> pl.Expr:
    """A decimal text of microseconds, exact to the nanosecond."""
    whole, decimals = ns.floordiv(1000), ns.mod(1000)
    return pl.concat_str(whole, pl.lit("."), decimals.cast(pl.String).str.zfill(3))
