"""Reader of archives of nsys-jax and nsys-jax-combine.

In: the zip file, or the folder that it was extracted to. Out: a `Raw`: executions, ops (one per run of a thunk, because
the archive has no kernels), compile ranges, host ranges and the programs of `dump/`. In an archive of nsys-jax-combine,
a file that differs between processes is a folder with one file per process; other files are shared.

The rank is the process number in the names of the launching threads.

Source: NVIDIA/JAX-Toolbox:docs/nsys-jax.md, .github/container/nsys_jax/nsys_jax/scripts/nsys_jax.py
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from nightjar_profiling.bytes.archive import DAMAGED, Archive
from nightjar_profiling.capture_folder.tables import UNREADABLE
from nightjar_profiling.errors import InputError
from nightjar_profiling.hlo.hlo_dump import Dumped, LazyPrograms, dumped_id, read_dumped
from nightjar_profiling.readers.annotations.xla_ranges import execution_table, program_table
from nightjar_profiling.readers.nsys_jax.nsys_jax_launchers import find_devices
from nightjar_profiling.readers.nsys_jax.nsys_jax_projection import UNUSED, Projected, read_projected
from nightjar_profiling.readers.nsys_jax.nsys_jax_ranges import HostRanges, read_host_ranges
from nightjar_profiling.readers.raw import NO_DEVICE_NAMES, Raw, keep_freed_memory, name_devices

TRACE = "nvtx_gpu_proj_trace/trace.parquet"
THREADS = "thread-metadata.parquet"
DEVICES = "device-metadata.parquet"
KIND = ("'TARGET_INFO_GPU'", "'name'")  # parts of the name of the column with GPU names
HOST = ("report_nvtx_pushpop_trace.parquet", "report_nvtx_pushpop_trace.csv.xz")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Process:
    """The data of one process; program ids are the process's."""

    rank: int
    projected: Projected
    host: HostRanges | None
    dumped: Mapping[int, Dumped]
    devices: tuple[str, ...]


def read_raw(path: Path, rank: int = 0) -> Raw:
    """Reads an archive."""
    keep_freed_memory()
    with Archive(path) as archive:
        names = _versions(archive, TRACE)
        if not names:
            hint = "expected an archive of nsys-jax or nsys-jax-combine"
            raise InputError(f"{path}: holds no {TRACE} ({len(archive.names)} files).", hint)
        warnings: list[str] = []
        dumps: dict[str, Dumped] = {}
        processes: list[_Process] = []
        try:
            for number, name in enumerate(names):
                process = _read_process(archive, name, rank + number, dumps, warnings)
                ranks = {other.rank for other in processes}
                if process.rank in ranks:
                    process = replace(process, rank=max(ranks) + 1)
                processes.append(process)
            return _join(processes, warnings)
        except UNREADABLE as error:  # a column has another type, or a number is too large
            raise InputError(f"{path}: a table does not match the format of nsys-jax: {error}.", DAMAGED) from None


def _versions(archive: Archive, name: str) -> dict[str | None, str]:
    """The files with a name, by process; a file that all processes share has the key None."""
    if name in archive.names:
        return {None: name}
    return {path.rpartition("/")[2]: path for path in archive.below(name)}


def _find(archive: Archive, name: str, process: str | None) -> str | None:
    versions = _versions(archive, name)
    return versions.get(process, versions.get(None))


def _read_process(
    archive: Archive, process: str | None, rank: int, dumps: dict[str, Dumped], warnings: list[str]
) -> _Process:
    trace = _find(archive, TRACE, process)
    assert trace is not None
    metadata = _find(archive, THREADS, process)
    if metadata is not None:
        threads = read_parquet(archive, metadata)
    else:
        threads = None
    if threads is None:
        warnings.append(f"{archive.path.name}: no {THREADS}: all ops are shown on device 0 of rank {rank}.")
    host_name = next((name for name in (_find(archive, path, process) for path in HOST) if name is not None), None)
    host = None
    if host_name is not None:
        host = read_host_ranges(archive.read(host_name), f"{archive.path}: {host_name}")
    else:
        warnings.append(f"{archive.path.name}: no {HOST[0]}: compilation is not shown.")
    projected = read_projected(read_parquet(archive, trace, UNUSED), f"{archive.path}: {trace}", warnings)
    devices = find_devices(threads, projected.ranges, rank)
    projected = projected.on_devices(devices, warnings)
    return _Process(
        rank=devices.rank,
        projected=projected,
        host=host,
        dumped=_choose(archive.path, projected.xla.fields, _read_dump(archive, process, dumps), warnings),
        devices=name_devices(_read_kinds(archive, process, warnings), projected.ops),
    )


def _read_kinds(archive: Archive, process: str | None, warnings: list[str]) -> list[str | None]:
    """The names of the machine's GPUs; empty if the archive lacks them."""
    name = _find(archive, DEVICES, process)
    try:
        if name is not None:
            table = read_parquet(archive, name)
        else:
            table = pl.DataFrame()
    except InputError as error:  # only the names are lost
        warnings.append(f"{error.message} {NO_DEVICE_NAMES}")
        return []
    titles = [title for title in table.columns if all(part in title for part in KIND)]
    if not titles:
        return []
    return table[titles[0]].cast(pl.String).to_list()


def read_parquet(archive: Archive, name: str, unused: Collection[str] = ()) -> pl.DataFrame:
    """Reads a Parquet file of an archive, without the unused columns."""
    data = archive.read(name)
    try:
        return pl.read_parquet(data, columns=[name for name in pl.read_parquet_schema(data) if name not in unused])
    except UNREADABLE as error:
        what = f"{archive.path}: {name} ({len(data)} bytes) is not a valid Parquet file: {error}."
        raise InputError(what, DAMAGED) from None


def _read_dump(archive: Archive, process: str | None, dumps: dict[str, Dumped]) -> dict[int, list[Dumped]]:
    """The programs that a process may have dumped, by id; a shared file is read once."""
    by_id: dict[int, list[Dumped]] = {}
    for name in archive.below("dump"):
        parts = name.split("/")
        number = dumped_id(parts[1])
        if number is None or (len(parts) == 3 and process is not None and parts[2] != process) or len(parts) > 3:
            continue
        if name not in dumps:
            dumps[name] = read_dumped(archive.read(name), f"{archive.path}: {name}")
        by_id.setdefault(number, []).append(dumps[name])
    return by_id


def _choose(
    path: Path, fields: pl.DataFrame, dumped: Mapping[int, list[Dumped]], warnings: list[str]
) -> dict[int, Dumped]:
    """Chooses the HLO of each program that ran by id and name, because another process may have used the same id."""
    chosen, missing = {}, []
    ran = fields.drop_nulls("module").select("program_id", "module").unique().sort("program_id", "module")
    for number, name in ran.filter(pl.col("program_id") >= 0).iter_rows():
        candidates = dumped.get(number, [])
        same_name = [candidate for candidate in candidates if candidate.name == name]
        if not candidates:
            missing.append(name)
            continue
        chosen[number] = (same_name or candidates)[0]
        if not same_name:
            warnings.append(f"{path.name}: program {number} ran as {name!r}, but its HLO is {candidates[0].name!r}.")
    if missing:
        names = ", ".join(sorted(set(missing))[:5])
        warnings.append(f"{path.name}: no HLO in dump/ for {len(missing)} programs that ran ({names}).")
    return chosen


def _join(processes: list[_Process], warnings: list[str]) -> Raw:
    """Joins processes; a program that several processes ran gets one id."""
    programs: dict[int, Dumped] = {}
    ids: dict[object, int] = {}
    tables: dict[str, list[pl.DataFrame]] = {}
    fingerprints: dict[int, str] = {}
    for process in processes:
        moved = {}
        seen: Counter[object] = Counter()  # a process may compile the same program twice
        for number, dumped in process.dumped.items():
            identity: object = dumped.data
            if dumped.fingerprint:
                identity = (dumped.name, dumped.fingerprint)
            key = (identity, seen[identity])
            seen[identity] += 1
            if key not in ids:
                ids[key] = max(*programs, *process.dumped) + 1 if number in programs else number
                programs[ids[key]] = dumped
                fingerprints[ids[key]] = dumped.fingerprint
            if ids[key] != number:
                moved[number] = ids[key]
        runs = process.projected
        process_tables = {"executions": execution_table(runs.executions), "ops": runs.ops}
        prints = {number: dumped.fingerprint for number, dumped in process.dumped.items()}
        process_tables["programs"] = program_table(runs.xla.fields, prints)
        if process.host is not None:
            process_tables |= {"compile": process.host.compile, "ranges": process.host.project(runs.ranges)}
        for name, table in process_tables.items():
            if "rank" in table.columns:
                table = table.with_columns(rank=pl.lit(process.rank, pl.Int64))
            if moved and "program_id" in table.columns:
                table = table.with_columns(pl.col("program_id").replace(moved))
            tables.setdefault(name, []).append(table)
    joined = {name: pl.concat(parts) for name, parts in tables.items()}
    joined["programs"] = joined["programs"].unique("program_id", maintain_order=True)
    return Raw(
        tables=joined,
        programs=LazyPrograms(programs),
        warnings=tuple(dict.fromkeys(warnings)),
        devices=tuple(kind for process in processes for kind in process.devices),
    )
