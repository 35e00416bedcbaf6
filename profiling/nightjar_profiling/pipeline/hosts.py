"""Captures of the hosts of a job: made of the raw trace that each host wrote, and merged into one.

In: raw traces, or captures. Out: one capture in the making, in which the rank is the position of the host.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from nightjar_profiling.capture_folder.manifest import Manifest, write_manifest
from nightjar_profiling.errors import NotAttributableError
from nightjar_profiling.pipeline import merge as merging
from nightjar_profiling.pipeline.ingest import convert, publish_tables
from nightjar_profiling.readers.detect import find_kind, name_host
from nightjar_profiling.report.analyse import Profile
from nightjar_profiling.terminal import say


def adopt(trace: Path, folder: Path, user_code: Sequence[str]) -> Manifest:
    """Copies a raw trace into a new capture folder, and writes the manifest for it."""
    kind = find_kind(trace)
    raw = folder / "raw" / f"rank0000{kind.suffix}"
    raw.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(trace, raw) if trace.is_dir() else shutil.copyfile(trace, raw)
    dump = trace.with_name(f"{trace.name.removesuffix(kind.suffix)}.dump")  # the HLO of a report of nsys
    if dump.is_dir():
        shutil.copytree(dump, folder / "raw" / "rank0000.dump")
    manifest = Manifest(
        backend=kind.backend,
        environment={"trace": trace.name},
        raw=(f"raw/{raw.name}",),
        user_code=tuple(user_code),
    )
    write_manifest(folder, manifest)
    return manifest


def tabulate_hosts(traces: Sequence[Path], scratch: Path, user_code: Sequence[str]) -> list[Path]:
    """Makes the tables of each host; one host at a time is in memory. A host that ran nothing is said and left out.

    Returns:
        A capture without a page for each host, with its name.
    """
    folders: list[Path] = []
    for number, trace in enumerate(traces, start=1):
        say(f"host {number} of {len(traces)}: {name_host(trace)}")
        folder = scratch / str(number) / name_host(trace)
        try:
            made = convert(folder, adopt(trace, folder, user_code), copy_sources=True, origin=str(trace))
        except NotAttributableError as error:
            if number == len(traces) and not folders:
                raise
            say(f"left out: {error}")
            continue
        shutil.rmtree(folder / "raw")
        environment = {**made.manifest.environment, "machine": {"host": name_host(trace)}}
        write_manifest(folder, replace(made.manifest, warnings=made.warnings, environment=environment))
        folders.append(folder)
    return folders


def merge_captures(folders: Sequence[Path], new: Path) -> Profile:
    """Merges captures into one in the making, with its report."""
    say(f"merging {len(folders)} captures")
    warnings = merging.merge_tables(folders, new / "tables")
    for folder in folders:
        if (folder / "sources").is_dir():
            shutil.copytree(folder / "sources", new / "sources", dirs_exist_ok=True)
    return publish_tables(new, merging.merge_manifests(folders, warnings))
