"""Conversion of raw traces to a complete capture folder.

In: a capture folder with raw traces and a manifest. Out: the rest of the folder: tables, sources, profile, flame graph
and report.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, islice
from pathlib import Path

import polars as pl

from nightjar_profiling import report
from nightjar_profiling.analyses.advice import advise
from nightjar_profiling.analyses.communication.clocks import estimate_clocks
from nightjar_profiling.analyses.communication.collectives import make_collectives, make_groups
from nightjar_profiling.analyses.communication.overlap import fill_hidden
from nightjar_profiling.analyses.host_time import read_host_time, tabulate_host_time
from nightjar_profiling.analyses.inferred_runs import infer_runs
from nightjar_profiling.analyses.modules import tabulate_modules
from nightjar_profiling.analyses.outlived import cut_outlived, explain_outlived, find_outlived
from nightjar_profiling.analyses.side_by_side import divide_moments
from nightjar_profiling.analyses.stacks import read_stacks
from nightjar_profiling.attribution import executed
from nightjar_profiling.attribution.attribute import attribute
from nightjar_profiling.attribution.avoidable import find_avoidable
from nightjar_profiling.attribution.merged import find_origins, merged_rows
from nightjar_profiling.attribution.scopes import find_scopes
from nightjar_profiling.capture_folder import sources
from nightjar_profiling.capture_folder.documents import write_json, write_text
from nightjar_profiling.capture_folder.manifest import Manifest, mark_times, write_manifest
from nightjar_profiling.capture_folder.tables import (
    EVENTS,
    SCHEMAS,
    Tables,
    collect,
    fill_table,
    make_table,
    read_table,
    scan_table,
    write_tables,
)
from nightjar_profiling.capture_folder.usercode import user_code_test
from nightjar_profiling.errors import NotAttributableError
from nightjar_profiling.hlo.hlo_rows import program_rows
from nightjar_profiling.hlo.lowered import Lowered, read_lowered_folders
from nightjar_profiling.readers.detect import find_kind, find_raw
from nightjar_profiling.readers.raw import Raw, merge_raw
from nightjar_profiling.report import analyse, flamegraph

OF_THIS_MACHINE = "The source lines are those that this machine has now, and may differ from what ran."
LARGEST_PAGE_OPS = 2_000_000  # a page of this size takes up to a minute


def make_tables(raw: Raw, outlived: pl.DataFrame | None = None, lowered: Iterable[Lowered] = ()) -> Tables:
    """Makes all tables of a trace, those computed from it included: attribution, collectives, hidden time, clocks.

    Args:
        lowered: the programs before optimizations, as far as they are kept.
    """
    tables = {name: raw.tables.get(name, make_table(name, ())) for name in SCHEMAS}
    ran = ran_instructions(tables["ops"])
    origins = find_origins(raw.programs, ran, lowered)
    tables["merged_operations"] = make_table("merged_operations", merged_rows(origins))
    rows = [
        program_rows(origins[number].program, origins[number].whole_shapes)
        if number in origins
        else program_rows(program)
        for number, program in raw.programs.items()
    ]
    for name in ("programs", "instructions", "frames", "buffers", "memory_over_time"):
        if name not in raw.tables:
            tables[name] = make_table(name, (row for program in rows for row in program[name]))
    tables["programs"] = tables["programs"].with_columns(lowered=pl.col("program_id").is_in(list(origins)))
    if outlived is None:
        outlived = find_outlived(tables["ops"], raw.programs)
    tables["ops"] = cut_outlived(tables["ops"], outlived)
    tables = infer_runs(tables)
    if "groups" not in raw.tables:
        tables["groups"] = make_groups(raw.programs)
    if "collectives" not in raw.tables:
        tables["collectives"] = make_collectives(tables["ops"], raw.programs, tables["groups"])
    if "clocks" not in raw.tables:
        tables["clocks"] = estimate_clocks(tables["collectives"])
    tables["ops"] = fill_hidden(tables["ops"], tables["collectives"])
    if "attribution" in raw.tables:
        return Tables(**{**tables, "attribution": raw.tables["attribution"]})
    attributions = {
        number: attribute(raw.programs[number], names, raw.placed.get(number))
        for number, names in ran.items()
        if number in raw.programs
    }
    if "scopes" not in raw.tables:
        scopes = [row for number, found in attributions.items() for row in find_scopes(raw.programs[number], found)]
        tables["scopes"] = make_table("scopes", scopes)
    avoidable = (row for number in attributions for row in find_avoidable(raw.programs[number], ran[number]))
    tables["avoidable"] = make_table("avoidable", avoidable)
    rows_of_attribution = (
        {s: getattr(row, s) for s in row.__slots__} for found in attributions.values() for row in found
    )
    return Tables(**{**tables, "attribution": make_table("attribution", rows_of_attribution)})


def ran_instructions(ops: pl.DataFrame) -> dict[int, list[str]]:
    """The instructions that ran, by program."""
    ran = ops.select("program_id", "instruction").drop_nulls().unique(maintain_order=True)
    by_program = ran.group_by("program_id", maintain_order=True).agg("instruction")
    return dict(by_program.iter_rows())


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """The tables of raw traces, and what to say of them."""

    manifest: Manifest
    tables: Tables
    warnings: tuple[str, ...]
    impossible_ns: int
    foreign: bool


def ingest(
    folder: Path,
    manifest: Manifest,
    *,
    copy_sources: bool,
    origin: str | None = None,
    parts: Sequence[Raw] | None = None,
) -> analyse.Profile:
    """Makes tables, sources, profile, flame graph and report of a capture from its raw traces, one per rank."""
    made = convert(folder, manifest, copy_sources=copy_sources, origin=origin, parts=parts)
    reported = replace(made.manifest, warnings=made.warnings)
    profile = publish(folder, reported, made.tables, impossible_ns=made.impossible_ns, foreign=made.foreign)
    write_manifest(folder, made.manifest)
    return profile


def convert(
    folder: Path, manifest: Manifest, *, copy_sources: bool, origin: str | None, parts: Sequence[Raw] | None = None
) -> Converted:
    """Makes tables and sources of a capture from its raw traces."""
    raw = find_raw(folder)
    manifest = replace(manifest, raw=tuple(f"raw/{path.name}" for path in raw))
    if parts is None:
        parts = [find_kind(path).read(path, rank) for rank, path in enumerate(raw)]
    merged = merge_raw(parts)
    if "ops" not in merged.tables or merged.tables["ops"].is_empty():
        raise _explain_no_ops(raw, origin or ", ".join(map(str, raw[:3])), merged)
    if merged.devices and not manifest.environment.get("devices"):  # a capture of ours already names them
        manifest = replace(manifest, environment={**manifest.environment, "devices": list(merged.devices)})
    outlived = find_outlived(merged.tables["ops"], merged.programs)
    ran = ran_instructions(merged.tables["ops"])
    names = {merged.programs[number].name for number in ran if number in merged.programs}
    tables = make_tables(merged, outlived, read_lowered_folders(folder / "raw", names))
    frames, texts = executed.name_texts(tables.frames, executed.read_texts(folder / "raw"))
    tables = replace(tables, frames=frames)
    if copy_sources:
        files = tables.frames["file"].unique().to_list()
        copied = sources.collect(files, manifest.environment.get("cwd"), folder / "sources", texts)
        manifest = replace(manifest, sources=tuple(copied))
        if copied and "trace" in manifest.environment:
            manifest = replace(manifest, warnings=(*manifest.warnings, OF_THIS_MACHINE))
    write_tables(folder / "tables", tables)
    warnings = (
        *manifest.warnings,
        *merged.warnings,
        *([] if merged.programs or merged.foreign else [analyse.NO_HLO]),
        *explain_outlived(outlived, tables.device_time_ns),
        *find_overhead(tables, manifest.backend),
    )
    return Converted(
        manifest=manifest,
        tables=tables,
        warnings=warnings,
        impossible_ns=int(outlived["impossible_ns"].sum()),
        foreign=merged.foreign,
    )


def _explain_no_ops(raw: Sequence[Path], origin: str, merged: Raw) -> NotAttributableError:
    if merged.programs and merged.tables["ranges"].is_empty():
        names = ", ".join(sorted({program.name for program in merged.programs.values()})[:3])
        message = f"{origin}: programs ({names}), but no event of any thread: the trace was made without host events."
        return NotAttributableError(
            message, "on a CPU, trace with host_tracer_level=1 or more (jax.profiler.ProfileOptions)"
        )
    message = f"{origin}: no kernels and no thunks: nothing ran on a device during the trace."
    message = " ".join([message, *(f"{warning.removesuffix('.')}." for warning in merged.warnings[:3])])
    hint = "choose steps in which the program computes (--steps FIRST:LAST)"
    if any(path.name.endswith(".xplane.pb") for path in raw):
        hint += "; on CPUs, jaxlib before 0.4.32 runs a program as one function and records no thunks"
    else:
        hint += "; Nsight Systems records GPU work only (--trace=cuda,nvtx); for a CPU, capture with --backend jax"
    return NotAttributableError(message, hint)


def publish(
    folder: Path,
    manifest: Manifest,
    tables: Tables,
    *,
    shown: Tables | None = None,
    impossible_ns: int | None = None,
    foreign: bool = False,
) -> analyse.Profile:
    """Writes profile, flame graph and report of a capture from its tables."""
    working_folder = manifest.environment.get("cwd")
    timed = shown or tables
    timed = replace(timed, ops=divide_moments(timed.ops))
    whole = timed.device_time_ns == tables.device_time_ns
    time = analyse.sum_device_time(tables, timed if whole else None)
    is_user_code = user_code_test(manifest.user_code)
    stack_of = read_stacks(tables, is_user_code)
    advice = advise(timed, manifest.environment.get("usage"))
    source_of = sources.reader(folder / "sources", working_folder)
    hot_lines = analyse.find_hot_lines(time, stack_of, source_of)
    host = read_host_time(folder / "raw")
    if host is not None:
        device_ns = {(line.file, line.line): line.self_ns for line in hot_lines}
        host = tabulate_host_time(host, is_user_code, source_of, device_ns)
    profile = analyse.Profile(
        **analyse.divide_time(time, stack_of, impossible_ns),
        hot_lines=tuple(hot_lines[: analyse.HOT_LINES]),
        backend=manifest.backend,
        command=manifest.command,
        steps=manifest.steps,
        flamegraph="flamegraph.json",
        warnings=manifest.warnings,
        foreign=foreign,
        lowered_fraction=analyse.measure_lowered(tables),
        merged_lines=tuple(islice(analyse.find_merged_lines(tables, stack_of), analyse.MOST_MERGED)),
        advice=tuple(analyse.place_advice(advice, tables, stack_of, host)),
        modules=tuple(tabulate_modules(tables).head(analyse.MOST_MODULES).iter_rows(named=True)),
        host=host,
    )
    write_json(folder / "profile.json", profile.document())
    tree = flamegraph.build_tree(time, stack_of, mark_times(manifest.backend))
    write_json(folder / "flamegraph.json", flamegraph.render_figure(tree))
    text_of = sources.text_reader(folder / "sources", working_folder)
    page = report.render_report(profile, manifest, timed, is_user_code, text_of, advice)
    write_text(folder / "report.html", page)
    return profile


def publish_tables(folder: Path, manifest: Manifest) -> analyse.Profile:
    """Writes profile, flame graph and report from the tables on disk, which may be larger than memory.

    The profile counts every op. The page shows the first ranks, up to LARGEST_PAGE_OPS ops in total.
    """
    ops = scan_table(folder / "tables", "ops")
    counts = collect(ops.group_by("rank").len().sort("rank"), folder / "tables", "ops").rows()
    if not counts:
        raise NotAttributableError(f"{folder}: no kernels and no thunks: nothing ran on any rank during its trace.")
    totals = accumulate(count for _, count in counts)
    last = max([counts[0][0], *(rank for (rank, _), n in zip(counts, totals, strict=True) if n <= LARGEST_PAGE_OPS)])
    small = {name: read_table(folder / "tables", name) for name in SCHEMAS if name not in EVENTS}
    firsts = {name: scan_table(folder / "tables", name).filter(pl.col("rank") <= last) for name in EVENTS}
    events = {name: collect(query, folder / "tables", name) for name, query in firsts.items()}
    small["collectives"] = small["collectives"].filter(pl.col("rank") <= last)
    shown = Tables(**small, **events)
    sums = ops.group_by("program_id", "instruction").agg(pl.col("duration_ns", "uncertain_ns", "hidden_ns").sum())
    by_instruction = collect(sums, folder / "tables", "ops")
    summed = fill_table("ops", by_instruction.height, **by_instruction.to_dict())
    reported = manifest
    if last < counts[-1][0]:
        text = f"The page shows ranks 0 to {last} of {len(counts)}; shares and hot lines count all ranks."
        reported = replace(manifest, warnings=(*manifest.warnings, text))
    profile = publish(folder, reported, replace(shown, ops=summed), shown=shown)
    write_manifest(folder, manifest)
    return profile


SHORTEST_MEAN_NS = 2_000  # recording an event costs about 1 µs, half of that
FEWEST_OPS = 1_000  # recording fewer costs less than a millisecond in total


def find_overhead(tables: Tables, backend: str) -> list[str]:
    """Warnings about the cost of recording CPU thunks; a GPU records its kernels while others run.

    Measured: no effect above noise for thunks of tens of microseconds; 3.9 times the step time at 2,000 a millisecond.
    """
    thunks = tables.ops.filter(pl.col("kind") == "thunk")
    n_ops, thunk_ns = thunks.height, int(thunks["duration_ns"].sum())
    if backend != "jax" or n_ops < FEWEST_OPS or thunk_ns >= n_ops * SHORTEST_MEAN_NS:
        return []
    mean_us = thunk_ns / n_ops / 1e3
    return [
        f"The {n_ops:,} ops last {mean_us:.2f} µs on average: recording them may have slowed the program severalfold, "
        "and the shares of the shortest ops are too large."
    ]
