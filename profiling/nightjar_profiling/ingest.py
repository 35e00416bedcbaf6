"""How does a folder with a raw trace become a whole capture?

In: a capture folder with `raw/*.xplane.pb` and a manifest. Out: everything else of it: tables, sources, profile, flame
graph, report.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from nightjar_profiling import analyse, flamegraph, report, sources
from nightjar_profiling.attribute import attribute
from nightjar_profiling.documents import write_json, write_text
from nightjar_profiling.errors import InputError, NotAttributableError
from nightjar_profiling.load.hlo import program_rows
from nightjar_profiling.load.xplane import Trace, merge_traces, op_rows, read_trace
from nightjar_profiling.manifest import Manifest, write_manifest
from nightjar_profiling.tables import Tables, make_table, write_tables
from nightjar_profiling.usercode import user_code_test


def make_tables(trace: Trace) -> Tables:
    """All tables of a trace, with the attribution of every instruction that ran."""
    ran: dict[int, dict[str, None]] = {number: {} for number in trace.programs}
    for op in trace.ops:
        if op.program_id in ran and op.instruction is not None:
            ran[op.program_id][op.instruction] = None
    rows = [program_rows(program) for program in trace.programs.values()]
    attributions = [one for number, names in ran.items() for one in attribute(trace.programs[number], names)]
    ops = op_rows(trace.ops)
    return Tables(
        **{
            name: make_table(name, (row for one in rows for row in one[name]))
            for name in ("programs", "instructions", "frames")
        },
        **{name: make_table(name, ops[name]) for name in ("executions", "ops")},
        attribution=make_table("attribution", ({s: getattr(one, s) for s in one.__slots__} for one in attributions)),
    )


def find_raw(folder: Path) -> list[Path]:
    """The raw traces of a capture folder, in order of rank.

    Raises:
        InputError: there is none.
    """
    found = sorted((folder / "raw").glob("*.xplane.pb"))
    if not found:
        raise InputError(f"{folder}: no raw trace: expected raw/*.xplane.pb.", "is the folder a capture?")
    return found


def ingest(folder: Path, manifest: Manifest, *, copy_sources: bool) -> analyse.Profile:
    """Makes tables, sources, profile, flame graph and report of a capture from its raw traces, one per rank.

    Args:
        folder: with the raw traces.
        manifest: as far as it is known; it is written with raw files and sources filled in.
        copy_sources: collect the sources from this machine; else those in the folder are used.

    Raises:
        InputError: a raw trace is damaged.
        NotAttributableError: the traces hold no op.
    """
    raw = find_raw(folder)
    manifest = replace(manifest, raw=tuple(f"raw/{path.name}" for path in raw))
    trace = merge_traces(read_trace(path, rank) for rank, path in enumerate(raw))
    if not trace.ops:
        raise NotAttributableError(
            f"{folder}: the trace holds no kernel and no thunk: nothing ran on a device while it was on.",
            "choose steps in which the program computes, with --steps FIRST:LAST",
        )
    tables = make_tables(trace)
    working_folder = manifest.environment.get("cwd")
    if copy_sources:
        files = tables.frames["file"].unique().to_list()
        manifest = replace(manifest, sources=tuple(sources.collect(files, working_folder, folder / "sources")))
    time = analyse.sum_device_time(tables)
    is_user_code = user_code_test(manifest.user_code)
    stack_of = analyse.read_stacks(tables, is_user_code)
    warnings = (*manifest.warnings, *trace.warnings)
    profile = analyse.make_profile(
        time,
        stack_of,
        analyse.find_hot_lines(time, stack_of, sources.reader(folder / "sources", working_folder)),
        backend=manifest.backend,
        command=manifest.command,
        steps=manifest.steps,
        flamegraph="flamegraph.json",
        warnings=warnings,
    )
    figure = flamegraph.render_figure(flamegraph.build_tree(time, stack_of))
    write_tables(folder / "tables", tables)
    write_json(folder / "profile.json", profile.document())
    write_json(folder / "flamegraph.json", figure)
    write_text(folder / "report.html", report.render_report(profile, figure, manifest, tables))
    write_manifest(folder, manifest)
    return profile
