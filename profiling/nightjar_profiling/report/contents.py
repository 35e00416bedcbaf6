"""The data of a report page.

In: tables, manifest, the test for user code, a way to read a source file. Out: one document for `pack`: frames and
sites, stacks with their time, instructions that ran, ops in lanes, sections of further tables, sources. The page
computes everything else (flame graph, hot lines, time per source line, the visible part of the timeline), so that it
can recompute it when the reader changes a setting.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from nightjar_profiling.analyses.advice import Advice
from nightjar_profiling.analyses.categories import GROUPS, summarise_work
from nightjar_profiling.analyses.communication.clocks import align
from nightjar_profiling.analyses.roofline import Peak, count_runs
from nightjar_profiling.analyses.side_by_side import ran_side_by_side
from nightjar_profiling.attribution.apportion import INSTRUCTION, WEIGHTS, Fusion, apportion_time
from nightjar_profiling.attribution.attribute import INFERRED
from nightjar_profiling.attribution.stacks import NO_STACK, StackTree, build_stacks
from nightjar_profiling.capture_folder.tables import Tables
from nightjar_profiling.report.section import Kind, make_section
from nightjar_profiling.report.sections import find_sections
from nightjar_profiling.report.timeline import timeline_data

LARGEST_SOURCES = 12 * 1024 * 1024  # characters of source text in one page; packing reduces them to about a fifth


def page_document(
    tables: Tables,
    is_user_code: Callable[[str], bool],
    source_of: Callable[[str], str | None],
    peak: Peak | None,
    advice: Sequence[Advice] = (),
    host: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """All data of the page except its header; with `busy_ns` of the ops also each line's part of the busy time."""
    tree = build_stacks(tables)
    shares: dict[Fusion, pl.DataFrame] = {fusion: apportion_time(tables, by=(), fusion=fusion) for fusion in WEIGHTS}
    instructions = instruction_data(tables, shares["root"], tree)
    stacks = {fusion: stack_data(split, tree) for fusion, split in shares.items()}
    busy_ns = int(tables.ops["busy_ns"].sum()) if "busy_ns" in tables.ops.columns else None
    if ran_side_by_side(tables.device_time_ns, busy_ns):
        for fusion, data in stacks.items():
            data["busy_ns"] = busy_data(apportion_time(tables, by=(), fusion=fusion, time="busy_ns"), tree, data)
    files = list(dict.fromkeys(file for file, _, _ in tree.places))
    functions = list(dict.fromkeys(function for _, _, function in tree.places))
    file_numbers = {file: number for number, file in enumerate(files)}
    function_numbers = {function: number for number, function in enumerate(functions)}
    return {
        "total_ns": tables.device_time_ns,
        "busy_ns": busy_ns,
        "fusion": "split",
        "files": files,
        "user": [is_user_code(file) for file in files],
        "functions": functions,
        "sites": {
            "file": int32(file_numbers[file] for file, _, _ in tree.places),
            "line": int32(line for _, line, _ in tree.places),
            "function": int32(function_numbers[function] for _, _, function in tree.places),
        },
        "frames": {"parent": int32(tree.parents), "site": int32(tree.sites)},
        "shares": stacks,
        "programs": [row["name"] for row in programs_of(tables)],
        "instructions": instructions,
        "groups": list(GROUPS),
        "merged": merged_data(tables, instructions["keys"], tree),
        "timeline": timeline_data(align(tables), instructions["keys"]),
        "sections": [*find_sections(tables, instructions["lines"], peak, advice), *host_sections(host)],
        "sources": read_sources(files, source_of, stacks["split"], tree, is_user_code),
    } | {"instructions": {key: value for key, value in instructions.items() if key not in ("keys", "lines")}}


def host_sections(host: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """The host's own time by line; none if it was not sampled."""
    if host is None or not host["lines"]:
        return []
    rows = [
        {
            "line": f"{PurePath(row['file']).name}:{row['line']} {row['function']}",
            "source": row["source"],
            "host time": row["host_ns"],
            "of the clock": row["fraction"],
            "most of it in": row["inside"],
            "time there": row["inside_ns"],
            "device time": row["device_ns"] or None,
        }
        for row in host["lines"]
    ]
    kinds: dict[str, Kind] = {
        "line": "text", "host time": "ns", "of the clock": "fraction", "device time": "ns", "source": "text",
        "most of it in": "text", "time there": "ns",
    }  # fmt: skip
    note = (
        f"Where the Python thread that ran the steps was, in {host['samples']:,} samples over "
        f"{host['elapsed_ns'] / 1e6:,.1f} ms on the clock: its innermost line of user code, and the function that it "
        f"had called. So many samples tell a share to about {100 * host['uncertain']:.0f} points. Beside it, the time "
        "of devices for the same line. The host runs ahead of the device until it needs a result: then it waits, in a "
        "function such as block_until_ready, or in the line itself where it calls that in C."
    )
    return [make_section("host", "Python on the host", note, pl.DataFrame(rows, infer_schema_length=None), kinds)]


def int32(values: Any) -> np.ndarray[Any, np.dtype[np.int32]]:
    """A column of small integers; null is -1."""
    return np.fromiter((-1 if value is None else value for value in values), dtype=np.int32)


def programs_of(tables: Tables) -> list[dict[str, Any]]:
    """The programs, in the order in which `instructions.program` counts them."""
    return list(tables.programs.sort("program_id").iter_rows(named=True))


def stack_data(shares: pl.DataFrame, tree: StackTree) -> dict[str, Any]:
    """Time by stack: the node, and its direct and inferred nanoseconds. Time without a stack has node -1."""
    direct, inferred = Counter[int](), Counter[int]()
    for program_id, frame_id, how, ns in (
        shares.group_by("program_id", "frame_id", "how").agg(pl.col("duration_ns").sum()).iter_rows()
    ):
        (inferred if how in INFERRED else direct)[tree.node_of(program_id, frame_id)] += ns
    nodes = sorted(direct.keys() | inferred.keys())
    return {
        "frame": int32(nodes),
        "direct_ns": np.array([direct[node] for node in nodes], dtype=np.float64),
        "inferred_ns": np.array([inferred[node] for node in nodes], dtype=np.float64),
    }


def busy_data(shares: pl.DataFrame, tree: StackTree, stacks: Mapping[str, Any]) -> NDArray[np.float64]:
    """The busy time of the devices by stack of `stack_data`."""
    busy = Counter[int]()
    for program_id, frame_id, ns in shares.select("program_id", "frame_id", "duration_ns").iter_rows():
        busy[tree.node_of(program_id, frame_id)] += ns
    return np.array([busy[node] for node in stacks["frame"].tolist()], dtype=np.float64)


def instruction_data(tables: Tables, shares: pl.DataFrame, tree: StackTree) -> dict[str, Any]:
    """The instructions that ran, largest first, each with the stack that has most of its time.

    An op without an instruction is listed under the name of its kernel.
    """
    kernel = pl.when(pl.col("instruction").is_null()).then("kernel").alias("kernel")
    keys = pl.struct(*INSTRUCTION, kernel)
    ran = tables.ops.group_by(keys.alias("key")).agg(
        pl.col("duration_ns").sum().alias("total_ns"), count_runs().alias("count"), pl.col("hidden_ns").sum()
    )
    instructions = tables.instructions.select(
        "program_id", pl.col("name").alias("instruction"), "opcode", "op_name", "shape", "sharding", "global_shape",
        "bytes", "flops",
    )  # fmt: skip
    work = summarise_work(tables).with_columns(kernel).sort("device_ns", "category", descending=[True, False])
    work = work.unique([*INSTRUCTION, "kernel"], keep="first").select(*INSTRUCTION, "kernel", "category")
    largest = (
        shares.sort("duration_ns", descending=True)
        .unique(subset=INSTRUCTION, keep="first", maintain_order=True)
        .select(*INSTRUCTION, "frame_id", "how")
    )
    rows = (
        ran.unnest("key")
        .join(instructions, on=INSTRUCTION, how="left")
        .join(largest, on=INSTRUCTION, how="left")
        .join(work, on=[*INSTRUCTION, "kernel"], how="left", nulls_equal=True)
        .sort("total_ns", "instruction", "kernel", descending=[True, False, False], nulls_last=True)
    )
    numbers = {row["program_id"]: number for number, row in enumerate(programs_of(tables))}
    groups = {category: number for number, names in enumerate(GROUPS.values()) for category in names}
    records = list(rows.iter_rows(named=True))
    frames = [tree.node_of(row["program_id"], row["frame_id"]) for row in records]
    return {
        "keys": {(row["program_id"], row["instruction"], row["kernel"]): n for n, row in enumerate(records)},
        "lines": {(row["program_id"], row["instruction"]): frame for row, frame in zip(records, frames, strict=True)},
        "name": [row["instruction"] or row["kernel"] or "?" for row in records],
        "opcode": [row["opcode"] or "no instruction" for row in records],
        "op_name": [row["op_name"] or "" for row in records],
        "shape": [row["shape"] or "" for row in records],
        "sharding": [row["sharding"] or "" for row in records],
        "global_shape": [row["global_shape"] or "" for row in records],
        "category": [row["category"] for row in records],
        "group": int32(groups.get(row["category"], len(GROUPS) - 1) for row in records),
        "program": int32(numbers.get(row["program_id"], -1) for row in records),
        "frame": int32(frames),
        "how": [row["how"] or "none" for row in records],
        "count": int32(row["count"] for row in records),
        "total_ns": np.array([row["total_ns"] for row in records], dtype=np.float64),
        "bytes": np.array([-1 if row["bytes"] is None else row["bytes"] for row in records], dtype=np.float64),
    }


def merged_data(
    tables: Tables, numbers: dict[tuple[int | None, str | None, str | None], int], tree: StackTree
) -> dict[str, Any]:
    """Operations that XLA merged: the instruction, the stack of the operation that is left, and of those that are not.

    An operation of which several fusions hold copies is counted at the first of them.

    Args:
        numbers: of the instructions, by program id, name and kernel.
    """
    first = pl.int_range(pl.len()).over("program_id", "kept_frame_id", "frame_id") == 0
    most = pl.col("operations").max().over("program_id", "kept_frame_id", "frame_id")
    counted = tables.merged_operations.with_columns(operations=pl.when(first).then(most).otherwise(0))
    rows = [row for row in counted.iter_rows() if (row[0], row[1], None) in numbers]
    return {
        "instruction": int32(numbers[program, name, None] for program, name, *_ in rows),
        "kept": int32(tree.node_of(program, kept) for program, _, kept, *_ in rows),
        "frame": int32(tree.node_of(program, frame) for program, _, _, frame, _ in rows),
        "operations": int32(row[4] for row in rows),
    }


def read_sources(
    files: list[str],
    source_of: Callable[[str], str | None],
    stacks: dict[str, Any],
    tree: StackTree,
    is_user_code: Callable[[str], bool],
) -> dict[str, str]:
    """The text of the files on stacks with time, user code first, up to LARGEST_SOURCES."""
    nodes = [node for node in stacks["frame"].tolist() if node != NO_STACK]
    on_stacks = {tree.places[site][0] for node in nodes for site in tree.path(node)}
    sources: dict[str, str] = {}
    remaining = LARGEST_SOURCES
    for file in sorted((file for file in files if file in on_stacks), key=lambda file: not is_user_code(file)):
        text = source_of(file)
        if text is not None and len(text) <= remaining:
            sources[file] = text
            remaining -= len(text)
    return sources
