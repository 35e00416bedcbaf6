"""What does an archive of nsys-jax, or of nsys-jax-combine, hold?

In: the zip file, or the folder that it was extracted to. Out: a `Raw`: executions, ops (one per run of a thunk, as the
archive keeps no kernels), compile ranges, host ranges and the programs of `dump/`. After nsys-jax-combine a file that
differs between the processes is a folder with one file for each; a file that does not differ serves all.

The processes give their number in the names of their launching threads, and that is the rank.

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
from nightjar_profiling.readers.freed_memory import keep_freed_memory
from nightjar_profiling.readers.nsys_jax.nsys_jax_launchers import find_devices
from nightjar_profiling.readers.nsys_jax.nsys_jax_projection import UNUSED, Projected, read_projected
from nightjar_profiling.readers.nsys_jax.nsys_jax_ranges import HostRanges, read_host_ranges
from nightjar_profiling.readers.raw import NAMELESS, Raw, name_devices

TRACE = "nvtx_gpu_proj_trace/trace.parquet"
THREADS = "thread-metadata.parquet"
DEVICES = "device-metadata.parquet"
KIND = ("'TARGET_INFO_GPU'", "'name'")  # parts of the title of its column with the names of GPUs
HOST = ("report_nvtx_pushpop_trace.parquet", "report_nvtx_pushpop_trace.csv.xz")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Process:
    """What the archive says of one process; program ids are its own."""

    rank: int
    projected: Projected
    host: HostRanges | None
    dumped: Mapping[int, Dumped]
    devices: tuple[str, ...]


def read_raw(path: Path, rank: int = 0) -> Raw:
    """Reads an archive.

    Args:
        path: a zip file, or a folder with its contents.
        rank: of a process whose threads do not tell; further ones count on from it.

    Raises:
        InputError: damaged, not an archive of nsys-jax, a zip bomb, or a name that climbs out of it.
    """
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
            for number, process in enumerate(names):
                one = _read_process(archive, process, rank + number, dumps, warnings)
                taken = {other.rank for other in processes}
                processes.append(one if one.rank not in taken else replace(one, rank=max(taken) + 1))
            return _join(processes, warnings)
        except UNREADABLE as error:  # a column of another type, a number that no column can hold
            raise InputError(f"{path}: a table in it is not as nsys-jax writes it: {error}.", DAMAGED) from None


def _versions(archive: Archive, name: str) -> dict[str | None, str]:
    """The files of that name by process; a file that is not a folder serves all, under None."""
    if name in archive.names:
        return {None: name}
    return {found.rpartition("/")[2]: found for found in archive.below(name)}


def _find(archive: Archive, name: str, process: str | None) -> str | None:
    versions = _versions(archive, name)
    return versions.get(process, versions.get(None))


def _read_process(
    archive: Archive, process: str | None, rank: int, dumps: dict[str, Dumped], warnings: list[str]
) -> _Process:
    trace = _find(archive, TRACE, process)
    assert trace is not None
    metadata = _find(archive, THREADS, process)
    if metadata is None:
        warnings.append(f"{archive.path.name}: no {THREADS}: every op is shown on device 0 of rank {rank}.")
    threads = None if metadata is None else read_parquet(archive, metadata)
    host_name = next((name for name in (_find(archive, one, process) for one in HOST) if name is not None), None)
    if host_name is None:
        warnings.append(f"{archive.path.name}: no {HOST[0]}: compilation is not shown.")
    projected = read_projected(read_parquet(archive, trace, UNUSED), f"{archive.path}: {trace}", warnings)
    devices = find_devices(threads, projected.ranges, rank)
    projected = projected.on_devices(devices, warnings)
    host = None if host_name is None else read_host_ranges(archive.read(host_name), f"{archive.path}: {host_name}")
    return _Process(
        rank=devices.rank,
        projected=projected,
        host=host,
        dumped=_choose(archive.path, projected.xla.told, _read_dump(archive, process, dumps), warnings),
        devices=name_devices(_read_kinds(archive, process, warnings), projected.ops),
    )


def _read_kinds(archive: Archive, process: str | None, warnings: list[str]) -> list[str | None]:
    """The names of the machine's GPUs; none where the archive does not tell."""
    name = _find(archive, DEVICES, process)
    try:
        told = pl.DataFrame() if name is None else read_parquet(archive, name)
    except InputError as error:  # all else can be shown without
        warnings.append(f"{error.message} {NAMELESS}")
        return []
    titles = [title for title in told.columns if all(part in title for part in KIND)]
    return told[titles[0]].cast(pl.String).to_list() if titles else []


def read_parquet(archive: Archive, name: str, unused: Collection[str] = ()) -> pl.DataFrame:
    """A Parquet file of an archive, without columns that nobody uses.

    Raises:
        InputError: damaged.
    """
    data = archive.read(name)
    try:
        return pl.read_parquet(data, columns=[name for name in pl.read_parquet_schema(data) if name not in unused])
    except UNREADABLE as error:
        raise InputError(
            f"{archive.path}: {name} in it ({len(data)} bytes) is not Parquet: {error}.", DAMAGED
        ) from None


def _read_dump(archive: Archive, process: str | None, dumps: dict[str, Dumped]) -> dict[int, list[Dumped]]:
    """The programs that a process may have dumped, by id; a file that several share is read once."""
    found: dict[int, list[Dumped]] = {}
    for name in archive.below("dump"):
        parts = name.split("/")
        number = dumped_id(parts[1])
        if number is None or (len(parts) == 3 and process is not None and parts[2] != process) or len(parts) > 3:
            continue
        if name not in dumps:
            dumps[name] = read_dumped(archive.read(name), f"{archive.path}: {name}")
        found.setdefault(number, []).append(dumps[name])
    return found


def _choose(
    path: Path, told: pl.DataFrame, dumped: Mapping[int, list[Dumped]], warnings: list[str]
) -> dict[int, Dumped]:
    """The HLO of each program that ran, by id and name: a file that only one process has may be another's program."""
    chosen, missing = {}, []
    ran = told.drop_nulls("module").select("program_id", "module").unique().sort("program_id", "module")
    for number, name in ran.filter(pl.col("program_id") >= 0).iter_rows():
        found = dumped.get(number, [])
        same = [one for one in found if one.name == name]
        if not found:
            missing.append(name)
            continue
        chosen[number] = (same or found)[0]
        if not same:
            warnings.append(f"{path.name}: program {number} ran as {name!r}, but its HLO is of {found[0].name!r}.")
    if missing:
        names = ", ".join(sorted(set(missing))[:5])
        warnings.append(f"{path.name}: no HLO in dump/ for {len(missing)} programs that ran ({names}).")
    return chosen


def _join(processes: list[_Process], warnings: list[str]) -> Raw:
    """One `Raw`; the same program of two processes has one id, whatever ids they gave it."""
    programs: dict[int, Dumped] = {}
    known: dict[object, int] = {}
    tables: dict[str, list[pl.DataFrame]] = {}
    fingerprints: dict[int, str] = {}
    for process in processes:
        moved = {}
        seen: Counter[object] = Counter()  # a process may compile the same program twice
        for number, dumped in process.dumped.items():
            same = (dumped.name, dumped.fingerprint) if dumped.fingerprint else dumped.data
            key = (same, seen[same])
            seen[same] += 1
            if key not in known:
                known[key] = number if number not in programs else max(*programs, *process.dumped) + 1
                programs[known[key]] = dumped
                fingerprints[known[key]] = dumped.fingerprint
            if known[key] != number:
                moved[number] = known[key]
        runs = process.projected
        parts = {"executions": execution_table(runs.executions), "ops": runs.ops}
        parts["programs"] = program_table(runs.xla.told, {n: d.fingerprint for n, d in process.dumped.items()})
        if process.host is not None:
            parts |= {"compile": process.host.compile, "ranges": process.host.project(runs.ranges)}
        for name, table in parts.items():
            if "rank" in table.columns:
                table = table.with_columns(rank=pl.lit(process.rank, pl.Int64))
            if moved and "program_id" in table.columns:
                table = table.with_columns(pl.col("program_id").replace(moved))
            tables.setdefault(name, []).append(table)
    joined = {name: pl.concat(found) for name, found in tables.items()}
    joined["programs"] = joined["programs"].unique("program_id", maintain_order=True)
    return Raw(
        tables=joined,
        programs=LazyPrograms(programs),
        warnings=tuple(dict.fromkeys(warnings)),
        devices=tuple(kind for process in processes for kind in process.devices),
    )
